"""Charts from plain rows: what a specification holds, and the pictures made of it."""

import io

import pytest
from PIL import Image

from ausam_lab.report import charts, html, vega
from ausam_lab.report.vega import Field

X, Y, BY = Field("x", "seconds"), Field("y", "score (%)"), Field("method", "method")
ROWS = [{"method": name, "x": 1.0 + i, "y": 10.0 * i} for i, name in enumerate(("a", "b", "c"))]
KIND = Field("kind", "kind")
TWO = [{**row, "kind": kind, "low": row["x"] - 1, "high": row["x"] + 1} for row in ROWS for kind in ("left", "right")]


def one_of_each(rows=ROWS):
    """Every form, with and without what it may have."""
    return {
        "scatter": charts.scatter(rows, X, Y, BY, [X, Y], log="x"),
        "lines": charts.lines(rows, X, Y, BY, [X, Y], y_from=1.0),
        "dots": charts.dots(rows, X, BY, [X], small=rows, rules=[(2.0, "here")], log=True),
        "dots of two kinds": charts.dots(TWO, X, BY, [X], kind=KIND, zero=True),
        "bars": charts.bars(rows, BY, Y, rule=1.0),
        "heat": charts.heat(rows, X, Y, Field("y", "loss"), log=True),
    }


def layer(spec, name):
    return next(part for part in spec["layer"] if part["name"] == name)


@pytest.mark.parametrize("form", one_of_each())
def test_every_form_is_drawn_in_the_colours_of_a_theme(form):
    spec = one_of_each()[form]
    for theme in ("light", "dark"):
        with Image.open(io.BytesIO(vega.png(spec, theme, scale=1))) as image:
            paper = image.convert("RGB").getpixel((1, 1))
            assert image.width == pytest.approx(spec["width"], abs=150)
            assert (sum(paper) > 600) == (theme == "light")
    assert "var(--" in html.figure(spec) or form == "heat"


def test_a_name_has_one_look_in_all_charts_of_a_page():
    order = ["z", "c", "b", "a"]
    curves, marks = charts.lines(ROWS, X, Y, BY, [X], order=order), charts.dots(ROWS, X, BY, [X], order=order)
    for spec, name in ((curves, "lines"), (marks, "marks")):
        scale = layer(spec, name)["encoding"]["color"]["scale"]
        assert dict(zip(scale["domain"], scale["range"], strict=True))["b"] == "var(--c2)"
    many = [{"method": f"m{i}", "x": float(x), "y": float(i + x)} for i in range(25) for x in (1, 2)]
    looks = layer(charts.lines(many, X, Y, BY, [X]), "lines")["encoding"]
    every = zip(looks["color"]["scale"]["range"], map(str, looks["strokeDash"]["scale"]["range"]), strict=True)
    assert len(set(every)) == 25  # a colour and a dash that no other has


def test_what_a_logarithm_cannot_show_is_left_out():
    rows = [*ROWS, {"method": "d", "x": 0.0, "y": 0.0}]
    assert "d" not in [row["method"] for row in charts.dots(rows, X, BY, [X], log=True)["data"]["values"]]
    assert [r["method"] for r in charts.lines(rows, X, Y, BY, [X], log="y")["data"]["values"]] == ["b", "c"]


def test_a_page_escapes_what_is_not_a_fragment():
    name = "</script><b>&\"'"
    chart = html.figure(charts.bars([{**ROWS[0], "method": name}], BY, Y))
    text = html.page("<title>", ["<script>alert(1)</script>", chart])
    assert "<title>&lt;title&gt;</title>" in text
    assert "&lt;script&gt;alert(1)" in text
    assert "</script><b>" not in text
