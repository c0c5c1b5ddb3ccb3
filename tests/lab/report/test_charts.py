"""Charts from plain rows: what a specification holds, and the pictures made of it."""

import io
import re
import xml.etree.ElementTree as ET

import pytest
from PIL import Image

from ausam_lab.records import store
from ausam_lab.report import charts, html, png, vega
from ausam_lab.report.charts import frontier
from ausam_lab.report.vega import Field
from tests.helpers import few_of
from tests.lab.report.example import FIGURES, compared

X, Y, BY = Field("x", "seconds"), Field("y", "score (%)"), Field("method", "method")
ROWS = [{"method": name, "x": float(i), "y": 10.0 * i} for i, name in enumerate(("a", "b", "c"))]


def a_scatter(rows=ROWS):
    return charts.scatter(rows, X, Y, BY, [X, Y])


def some_lines(rows=ROWS, **changes):
    return charts.lines(rows, X, Y, BY, [X, Y], **changes)


def some_pairs(names=("a", "b")):
    rows = [{"method": n, "kind": k, "x": 1.0 + i} for n in names for i, k in enumerate(("left", "right"))]
    return charts.pairs(rows, X, BY, Field("kind", "kind"), ("left", "right"))


def words(spec):
    return [text.text for text in ET.fromstring(vega.svg(spec)).iter("{http://www.w3.org/2000/svg}text")]


def test_frontier_by_hand():
    at = {"a": (1, 1), "b": (2, 3), "c": (2, 2), "d": (3, 3), "e": (4, 5), "f": (0.5, 1)}
    rows = [{"name": name, "x": x, "y": y} for name, (x, y) in at.items()]
    assert [row["name"] for row in frontier(rows, "x", "y")] == ["f", "b", "e"]
    turned = [row | {"y": -row["y"]} for row in rows]
    assert [row["name"] for row in frontier(turned, "x", "y", lower=True)] == ["f", "b", "e"]


def test_all_words_follow_the_theme_of_the_page():
    squares = charts.heat([{"x": 0.0, "y": 0.0, "v": 1.0}, {"x": 1.0, "y": 0.0, "v": 2.0}], X, Y, Field("v", "loss"))
    for spec in (a_scatter(), some_lines(), some_pairs(), squares):
        texts = ET.fromstring(vega.svg(spec)).iter("{http://www.w3.org/2000/svg}text")
        assert {(text.get("fill") or text.get("stroke")).partition("(")[0] for text in texts} == {"var"}


def test_positions_are_to_scale():
    svg = vega.svg(a_scatter())
    marks = re.search(r'<g class="mark-symbol role-mark marks_marks".*?</g>', svg, re.S)[0]
    (ax, ay), (bx, by), (cx, cy) = [map(float, p) for p in re.findall(r"translate\(([\d.]+),([\d.]+)\)", marks)]
    assert (bx, by) == pytest.approx(((ax + cx) / 2, (ay + cy) / 2), abs=0.1)
    assert ax < cx
    assert ay > cy  # up is more


def test_every_name_has_an_entry_of_its_own_in_the_legend():
    rows = [{"method": f"m{i}", "x": float(x), "y": float(i + x)} for i in range(25) for x in (1, 2)]
    for spec in (a_scatter(rows), some_lines(rows)):
        assert {f"m{i}" for i in range(25)} <= set(words(spec))
        looks = next(layer for layer in spec["layer"] if layer["name"] in ("marks", "lines"))["encoding"]
        second = looks["shape"] if "shape" in looks else looks["strokeDash"]
        every = list(zip(looks["color"]["scale"]["range"], map(str, second["scale"]["range"]), strict=True))
        assert len(set(every)) == 25  # a colour and a shape or dash that no other has


def test_what_lies_below_the_axis_is_cut_off_and_only_then():
    rows = [{"method": "a", "x": float(i), "y": y} for i, y in enumerate((10.0, 90.0, 95.0))]
    assert "clip-path" in vega.svg(some_lines(rows, y_from=90.0))
    assert "clip-path" not in vega.svg(some_lines(rows, y_from=10.0))
    shown = [float(word) for word in words(some_lines(rows, y_from=90.0)) if re.fullmatch(r"[\d.]+", word)]
    assert {90.0, 95.0} <= set(shown)
    assert not [value for value in shown if 2 < value < 90]


def test_whole_numbers_have_no_ticks_between_them():
    rows = [{"method": "a", "x": x, "y": 1.0 * x} for x in (1, 2, 3)]
    shown = words(charts.lines(rows, Field("x", "epoch", "d"), Y, BY, [X]))
    assert [word for word in shown if word in "123"][:3] == ["1", "2", "3"]


@pytest.mark.parametrize("make", [a_scatter, some_lines])
def test_charts_of_one_value_and_of_none(make):
    assert "a" in words(make(ROWS[:1]))
    words(make([]))


def test_a_strip_has_the_colours_of_the_page():
    rows = [{"method": name, "x": x} for name, x in (("b", 1.0), ("a", 10.0), ("a", 0.0))]
    spec = charts.strip(rows, X, BY, [X], order=("a", "b"))
    assert {"a", "b"} <= set(words(spec))
    (layer,) = spec["layer"]
    assert layer["encoding"]["color"]["scale"] == {"domain": ["a", "b"], "range": ["var(--c0)", "var(--c1)"]}
    assert len(spec["datasets"][spec["data"]["name"]]) == 2  # a logarithm of nothing is left out


def test_other_forms_are_drawn():
    rows = [{"x": float(i), "y": i + 1.0, "z": 2.0 ** (i % 3)} for i in range(4)]
    z = Field("z", "loss", ".3~g")
    named = [{"x": str(i), "y": 1.0 * i} for i in range(3)]
    assert "score (%)" in words(charts.diagonal(rows, X, Y))
    assert "2" in words(charts.bars(named, X, Y, rule=1.0))
    assert "loss" in words(charts.heat(rows, X, Y, z))


def test_pairs_of_none():
    words(some_pairs(()))


def test_points_that_are_only_there_to_point_at_are_not_in_the_drawing():
    rows = [{"method": "a", "x": float(x), "y": float(x)} for x in range(40)]
    spec = some_lines(rows)
    assert [layer["name"] for layer in spec["layer"]][-1] == "unseen"
    assert "unseen" not in vega.svg(spec)
    assert "dots_marks" in vega.svg(some_lines())


NAMES = ["\x00", "\x1b[31m", "\ud800", "é\u0301\u202e", "方法", "😀", "a" * 500, "<b>&\"'", "a[0].b"]


@pytest.mark.parametrize("name", few_of(NAMES, "\x00", "\ud800", "<b>&\"'"))
def test_any_name_can_be_drawn(name):
    for spec in (a_scatter([{**ROWS[0], "method": name, "strong": True}]), some_pairs((name,))):
        ET.fromstring(vega.svg(spec))
        assert vega.png(spec).startswith(b"\x89PNG")
        assert "<b>" not in html.figure(spec)


def test_names_inside_two_drawings_of_a_page_differ():
    rows = [{"method": "a", "x": float(i), "y": y} for i, y in enumerate((10.0, 90.0, 95.0))]
    both = [html.figure(some_lines(rows, y_from=low)) for low in (50.0, 90.0)]
    names = [set(re.findall(r'id="([^"]*)"', text)) for text in both]
    assert all(names)
    assert not names[0] & names[1]
    for text, own in zip(both, names, strict=True):
        assert set(re.findall(r"url\(#([^)]*)\)", text)) <= own


@pytest.mark.parametrize(("theme", "paper"), [("light", (255, 255, 255)), ("dark", (20, 24, 29))])
def test_png_has_the_colours_of_a_theme(theme, paper):
    image = Image.open(io.BytesIO(vega.png(a_scatter(), theme, scale=1))).convert("RGB")
    assert image.width == pytest.approx(640, abs=2)
    assert image.getpixel((1, 1)) == paper
    first = tuple(bytes.fromhex(vega.THEMES[theme]["--c0"][1:]))
    assert first in {colour for _, colour in image.getcolors(1 << 20)}


def test_pictures_of_a_comparison_by_command(tmp_path, capsys):
    store.write(tmp_path / "results.json", compared(FIGURES))
    assert png.main([str(tmp_path / "results.json"), str(tmp_path / "docs"), "--scale", "1"]) == 0
    names = ["time.png", "curves.png", "chosen.png", "mislabelled.png"]
    assert capsys.readouterr().out.split() == [str(tmp_path / "docs" / name) for name in names]
    for name in names:
        with Image.open(tmp_path / "docs" / name) as image:
            assert image.width == pytest.approx(640, abs=2)


def test_pictures_of_something_else_are_refused(tmp_path, capsys):
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(SystemExit, match="2"):
        png.main([str(tmp_path / "results.json"), str(tmp_path)])
    assert "a comparison of version" in capsys.readouterr().err


def test_a_page_escapes_what_is_not_a_fragment():
    text = html.page("<title>", ["<script>alert(1)</script>", html.fill("figure.html", spec={}, drawing="<svg>")])
    assert "<title>&lt;title&gt;</title>" in text
    assert "&lt;script&gt;alert(1)" in text
    assert "&lt;svg&gt;" in text
    assert "<script>alert" not in text
