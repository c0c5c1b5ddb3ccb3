"""The report says what the figures say: checked against hand computation, never against the code's own output."""

import copy
import itertools
import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from ausam.lab.report.chart_text import esc, fit, place, spread, text_width
from ausam.lab.report.charts import Line, Point, domain, frontier, lines, pairs, scatter, tick_labels, ticks
from ausam.lab.report.page import answer, render, write_report
from ausam.lab.report.summary import headline, text_table

VOID = {"meta", "link", "br", "hr", "img"}


def row(name, accuracy, std, seconds, speed, samples, n=3, label=None, **more):
    return {
        "name": name,
        "label": label or name.upper(),
        "method": "SAM(rho=0.2)",
        "policy": "Full()",
        "epochs": 2,
        "n": n,
        "accuracy_mean": accuracy,
        "accuracy_std": std,
        "train_seconds_mean": seconds,
        "train_seconds_std": None if std is None else 0.1,
        "speed_of_sam": speed,
        "samples_of_sam": samples,
        **more,
    }


def run(name, seed, accuracies, chosen=None):
    curve = [{"epoch": i + 1, "train_loss": 1.0, "test_accuracy": a, "seconds": i} for i, a in enumerate(accuracies)]
    selection = None
    if chosen:
        bins = [
            {"score": 0.1, "chosen": 2.0, "wrong": 0.0, "n": 10},
            {"score": 0.9, "chosen": 4.0, "wrong": 0.5, "n": 30},
        ]
        right, wrong = ({"n": 20, "chosen": c, "score": 0.1} for c in chosen)
        selection = {"signal": "sharpness", "bins": bins, "right": right, "wrong": wrong}
    return {"name": name, "seed": seed, "test_accuracy": accuracies[-1], "curve": curve, "selection": selection}


@pytest.fixture
def results():
    return {
        "title": "digits",
        "command": "ausam compare sgd sam ausam-0.5",
        "created": "2026-11-15T21:40:00+00:00",
        "data": {"name": "digits", "train": 1000, "test": 797, "classes": 10, "label_noise": 0.2},
        "complete": True,
        "conditions": {
            "hardware": {"cpu": "a cpu", "cores": 2},
            "versions": {"torch": "2.13.0"},
            "commit": None,
            "seeds": [0, 1],
            "config": {"lr": 0.05, "model": "resnet-tiny"},
        },
        "rows": [
            row("sgd", 94.0, 0.3, 6.0, 200.0, 50.0),
            row("sam", 96.0, 0.3, 12.0, 100.0, 100.0),
            row("sam@0.5", 94.5, 0.4, 6.0, 200.0, 50.0),
            row("ausam-0.5", 95.5, 0.3, 6.4, 187.5, 51.7, policy="AUSampling(alpha=0.5)"),
            row("sam+random", 95.2, 0.4, 6.2, 193.5, 51.7, label="SAM+random"),
        ],
        "runs": [
            run("sgd", 0, [50.0, 94.0]),
            run("ausam-0.5", 0, [40.0, 95.0], (10.0, 14.0)),
            run("ausam-0.5", 1, [60.0, 96.0], (10.0, 16.0)),
            run("sam+random", 0, [55.0, 95.2], (12.0, 12.1)),
        ],
    }


def only(results, *names):
    out = copy.deepcopy(results)
    out["rows"] = [r for r in out["rows"] if r["name"] in names]
    out["runs"] = [r for r in out["runs"] if r["name"] in names]
    return out


def change(results, name, **values):
    out = copy.deepcopy(results)
    next(r for r in out["rows"] if r["name"] == name).update(values)
    return out


class Page(HTMLParser):
    """Balanced tags, every attribute, and the text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.attributes, self.tags, self.text = [], [], [], ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data.replace("\u00a0", " ")


def svgs(page):
    """Every outermost drawing of the page, parsed as XML."""
    return [ET.fromstring(s) for s in re.findall(r'<svg viewBox="0 0.*?</svg>(?=</div>)', page, re.S)]


def test_headline_has_the_figures(results):
    text = headline(results)
    assert "AUSAM-0.5 reaches 95.50 ± 0.30 % test accuracy in 53 % of SAM's training time." in text  # 100 / 1.875
    assert "SAM 96.00 ± 0.30 %, SGD 94.00 ± 0.30 % in 50 %, SAM@0.5 94.50 ± 0.40 % in 50 %" in text
    assert "SAM+random 95.20 ± 0.40 % in 52 %" in text
    assert "Against SAM: −0.50 points, beyond the spread of 0.42." in text  # sqrt(0.3^2 + 0.3^2)


def test_headline_admits_what_is_within_the_spread(results):
    # +0.30 against sqrt(0.3^2 + 0.4^2) = 0.50; +1.00 and +1.50 are beyond theirs
    says = "AUSAM-0.5 beats SGD (+1.50 points) and SAM@0.5 (+1.00 points); it does not beat SAM+random (+0.30 points, "
    assert says + "within the spread of 0.50)." in headline(results)


def test_headline_claims_what_is_beyond_the_spread(results):
    text = headline(change(results, "sam+random", accuracy_mean=94.99))  # +0.51 > 0.50
    assert "beats SGD (+1.50 points), SAM@0.5 (+1.00 points) and SAM+random (+0.51 points)." in text
    assert "does not beat" not in text


def test_a_difference_as_large_as_the_spread_is_no_win(results):
    assert "does not beat SAM+random (+0.50 points" in headline(change(results, "sam+random", accuracy_mean=95.0))


def test_headline_says_when_ausam_loses(results):
    text = headline(change(results, "sam+random", accuracy_mean=96.5))
    assert "falls behind SAM+random (−1.00 points)." in text
    assert "beats SGD" in text


def test_one_run_decides_nothing(results):
    for r in results["rows"]:
        r.update(n=1, accuracy_std=None, train_seconds_std=None)
    text = headline(results)
    assert "AUSAM-0.5 reaches 95.50 % test accuracy" in text
    assert "A single run has no spread, so AUSAM-0.5 against SGD (+1.50 points)" in text
    assert "beats" not in text
    assert "±" not in text_table(results)


def test_only_baselines_of_about_the_same_cost_count(results):
    text = headline(change(results, "sam@0.5", samples_of_sam=70.0))  # more than a fifth off 51.7
    assert "SAM@0.5" not in text
    assert "SAM+random" in text
    alone = headline(only(results, "sgd", "sam", "ausam-0.5"))
    assert "No baseline of about that cost (sam@0.5, sam+random) ran" in alone


def test_headline_without_sam_gives_seconds(results):
    for r in results["rows"]:
        r.update(speed_of_sam=None, samples_of_sam=None)
    text = headline(only(results, "sgd", "ausam-0.5", "sam+random"))
    assert text.startswith("AUSAM-0.5 reaches 95.50 ± 0.30 % test accuracy in 6.4 s of training.")
    assert "Against SAM" not in text
    assert "does not beat SAM+random" in text  # 6.2 s is about the same cost as 6.4 s


def test_headline_without_sgd_or_ausam(results):
    assert "SGD" not in headline(only(results, "sam", "ausam-0.5", "sam+random"))
    text = headline(only(results, "sgd", "sam"))
    assert text.startswith("No AUSAM row has finished; the most accurate, SAM reaches 96.00 ± 0.30 % test accuracy.")
    assert "SGD 94.00 ± 0.30 % in 50 %" in text


def test_headline_when_nothing_or_not_all_finished(results):
    assert (
        headline({}) == headline({"rows": [], "runs": []}) == "No run has finished yet, so there is nothing to compare."
    )
    results["complete"] = False
    assert headline(results).endswith("(Unfinished: 4 runs so far.)")
    pending = change(results, "ausam-0.5", n=0, accuracy_mean=None, accuracy_std=None, speed_of_sam=None)
    assert headline(pending).startswith("No AUSAM row has finished")


def test_many_ausam_rows_are_cut_to_two(results):
    results["rows"] += [row(f"ausam-0.{i}", 95.0, 0.1, 6.0, 200.0, 50.0) for i in (4, 6, 7)]
    text = headline(results)
    assert "AUSAM-0.4 reaches" in text
    assert "AUSAM-0.6" not in text
    assert "More AUSAM rows in the table: 2." in text


def test_ausampling_under_another_method_is_compared_with_that_method(results):
    rows = [row("gsam-0.5", 95.5, 0.1, 6.0, 200.0, 50.0, policy="AUSampling(alpha=0.5)")]
    rows += [row("gsam+random", 95.0, 0.1, 6.0, 200.0, 50.0), row("asam+random", 99.0, 0.1, 6.0, 200.0, 50.0)]
    text = headline({"rows": rows})
    assert "GSAM-0.5 beats GSAM+RANDOM (+0.50 points)." in text
    assert "ASAM+RANDOM" not in text


def test_text_table(results):
    results["rows"] = [*results["rows"][:2], row("new", None, None, None, None, None, n=0)]
    assert text_table(results).splitlines() == [
        "Method      Accuracy  SAM%  Samples%     Train s",
        "------  ------------  ----  --------  ----------",
        "SGD     94.00 ± 0.30   200      50.0   6.0 ± 0.1",
        "SAM     96.00 ± 0.30   100     100.0  12.0 ± 0.1",
        "NEW                –     –         –           –",
    ]


def test_a_terminal_gets_no_control_characters(results):
    results["rows"][0]["label"] = "\x1b[31mSGD\n"
    assert "\x1b" not in text_table(results)
    assert len(text_table(results).splitlines()) == 7


def test_page_table(results):
    page = render(results)
    cells = re.findall(r"<tr class=ours><th.*?>AUSAM-0.5<.*?</tr>", page)
    assert re.findall(r"<td>(.*?)</td>", cells[0]) == ["95.50 ± 0.30", "188", "51.7", "6.4 ± 0.1", "2", "3"]
    assert "<b>96.00 ± 0.30</b>" in page  # the best accuracy, and only that
    assert page.count("<b>") == 1


def test_page_is_well_formed_and_complete(results):
    page = Page(render(results))
    assert headline(results) in page.text
    assert answer(results) in page.text
    order = [
        "digits",
        "Speed, SAM = 100",
        "Accuracy against",
        "Learning curves",
        "How often",
        "Conditions",
        "resnet-tiny",
    ]
    found = [page.text.index(part) for part in order]
    assert found == sorted(found)
    for text in ("ausam compare sgd sam ausam-0.5", "a cpu", "2.13.0", "0, 1", "0.05", "20 % wrong labels"):
        assert text in page.text
    assert re.search(r"commit\s*–", page.text)  # missing: a dash
    assert len(svgs(render(results))) == 8  # four charts, wide and narrow


def test_page_asks_for_nothing_and_runs_nothing(results):
    text = render(results)
    page = Page(text)
    assert "script" not in page.tags
    assert not re.search(r"https?://|url\(|@import", text)
    assert [v for k, v in page.attributes if k in ("src", "href", "xlink:href", "srcset")] == ["data:,"]
    assert not [k for k, _ in page.attributes if k.startswith("on")]


def test_hostile_strings_are_escaped(results):
    evil = "\"'><script>alert(1)</script>\x00<img src=x onerror=y>"
    before = Page(render(results)).tags
    for r in results["rows"] + results["runs"]:
        r["name"] = evil + r["name"]
        r.update({k: evil for k in ("label", "method", "policy") if k in r})
    for r in results["runs"]:
        if r["selection"]:
            r["selection"]["signal"] = evil
    results.update(title=evil, command=evil, created=evil, data={evil: evil, "train": evil})
    results["conditions"] = {"commit": evil, "seeds": [evil], "hardware": {evil: evil}, "config": {evil: [evil]}}
    text = render(results)
    page = Page(text)
    assert set(page.tags) <= set(before)
    assert "&lt;script&gt;" in text
    assert not re.search("<script|<img", text)
    assert len(svgs(text)) == 8  # still XML


@pytest.mark.parametrize("missing", ["rows", "runs", "conditions", "data", "title", "command", "created"])
def test_page_with_a_part_missing(results, missing):
    for value in ("absent", None):
        partial = {k: v for k, v in results.items() if k != missing}
        Page(render(partial if value else partial | {missing: None}))


def test_page_of_nothing():
    page = Page(render({"rows": [], "runs": [], "complete": False}))
    assert "No run has finished yet" in page.text
    assert "This comparison is not complete." in page.text
    assert "svg" not in page.tags


def test_not_a_number_is_a_dash(results):
    for key in ("accuracy_mean", "accuracy_std", "train_seconds_mean", "speed_of_sam"):
        results["rows"][0][key] = math.nan
    results["runs"][0]["curve"][1]["test_accuracy"] = math.inf
    text = render(results)
    assert not re.search(r"\b(nan|inf)\b", text)
    assert text_table(results).splitlines()[2].split() == ["SGD", "–", "–", "50.0", "–"]


def test_answer_on_mislabelled_samples(results):
    text = answer(results)
    assert "AUSAM-0.5: yes, 15.0 times on average against 10.0 (1.50 times as often; more in 2 of 2 runs)" in text
    assert "SAM+random: no clear difference, 12.1 times on average against 12.0" in text


def test_answer_is_no_when_they_are_chosen_less_and_open_when_runs_disagree(results):
    ours = [r for r in results["runs"] if r["name"] == "ausam-0.5"]
    for r in ours:
        r["selection"]["wrong"]["chosen"] = 5.0
    assert "AUSAM-0.5: no, less often, 5.0 times on average against 10.0 (0.50 times" in answer(results)
    ours[0]["selection"]["wrong"]["chosen"] = 30.0
    assert "AUSAM-0.5: no clear difference, 17.5 times" in answer(results)


def test_answer_without_known_labels(results):
    for r in results["runs"]:
        if r["selection"]:
            r["selection"].update(right=None, wrong=None)
    assert "is unknown" in answer(results)
    assert len(svgs(render(results))) == 6  # the chart of scores stays, the one of labels goes


def titles(svg):
    return [e.text for e in svg.iter("title")]


def test_charts_carry_the_figures(results):
    time, _, curves, _, chosen, _, labels, _ = svgs(render(results))
    assert "AUSAM-0.5: 95.50 ± 0.30 %, 6.40 ± 0.10 s, 3 runs" in titles(time)
    assert "AUSAM-0.5: 95.50 at the end" in titles(curves)  # mean of 95 and 96
    assert "AUSAM-0.5: score 0.9, chosen 4.0 times, 50 % mislabelled" in titles(chosen)
    assert {"AUSAM-0.5: correctly labelled 10.0", "AUSAM-0.5: mislabelled 15.0"} <= set(titles(labels))


def test_bins_lie_at_the_middle_of_their_share_of_the_samples(results):
    chart = svgs(render(results))[4]
    frame = next(e for e in chart.iter("rect") if e.get("class") == "frame")
    left, width = float(frame.get("x")), float(frame.get("width"))
    dots = [e for e in chart.iter("circle") if e.find("title").text.startswith("AUSAM")]
    # 10 and 30 of 40 samples: the middles lie at 5/40 and 25/40
    assert [(float(d.get("cx")) - left) / width for d in dots] == pytest.approx([0.125, 0.625], abs=1e-3)


def test_write_report_is_atomic(results, tmp_path):
    path = tmp_path / "new" / "report.html"
    write_report(results, path)
    assert path.read_text(encoding="utf-8") == render(results)
    with pytest.raises(AttributeError):
        write_report({"rows": [1]}, path)
    assert path.read_text(encoding="utf-8") == render(results)
    (path.parent / "folder").mkdir()
    with pytest.raises(ValueError, match="folder cannot be written: Is a directory"):
        write_report(results, path.parent / "folder")
    assert sorted(p.name for p in path.parent.iterdir()) == ["folder", "report.html"]  # nothing half-written stays


RANGES = [(0, 1), (0, 100), (-3, 7), (94.31, 96.2), (1e-7, 3e-7), (5, 5.001), (0, 12345678), (-1e-3, -1e-4), (1, 30)]


@pytest.mark.parametrize("count", [2, 5, 8])
@pytest.mark.parametrize(("lo", "hi"), RANGES)
def test_ticks_are_round_even_and_inside(lo, hi, count):
    found = ticks(lo, hi, count)
    assert 1 <= len(found) <= count + 1
    assert all(lo - 1e-9 * abs(hi - lo) <= t <= hi + 1e-9 * abs(hi - lo) for t in found)
    steps = [b - a for a, b in itertools.pairwise(found)]
    for step in steps:
        mantissa = step / 10 ** math.floor(math.log10(step) + 1e-6)
        assert min(abs(mantissa - m) for m in (1, 2, 2.5, 5)) < 1e-3
        assert found[0] / step == pytest.approx(round(found[0] / step), abs=1e-6)
    assert [float(t) for t in tick_labels(found)] == pytest.approx(found, rel=1e-5, abs=1e-12)
    assert len(set(tick_labels(found))) == len(found)
    low, high = domain([lo, hi], count)
    assert low <= lo + 1e-9 * (hi - lo)
    assert high >= hi - 1e-9 * (hi - lo)
    assert high - low <= 3 * (hi - lo) + 1e-12


def test_ticks_by_hand():
    assert ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert tick_labels(ticks(94, 96, 4)) == ["94.0", "94.5", "95.0", "95.5", "96.0"]
    assert tick_labels(ticks(0, 10, 4)) == ["0.0", "2.5", "5.0", "7.5", "10.0"]
    assert tick_labels([]) == []


def test_ticks_refuse_an_empty_range_and_domain_widens_it():
    with pytest.raises(
        ValueError, match=r"An axis needs finite lo < hi, got 3 and 3: widen the range with domain\(\) first"
    ):
        ticks(3, 3)
    for value in (0.0, 3.0, -1e9):
        lo, hi = domain([value])
        assert lo < value < hi
    assert domain([]) == (0.0, 1.0)


def test_frontier_by_hand():
    points = [
        Point(1, 1, "a"),
        Point(2, 3, "b"),
        Point(2, 2, "c"),
        Point(3, 3, "d"),
        Point(4, 5, "e"),
        Point(0.5, 1, "f"),
    ]
    assert [p.label for p in frontier(points)] == ["f", "b", "e"]


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def test_labels_never_overlap_or_leave_the_frame():
    # thirty marks, most of them in one crowded corner
    at = [(60 + 7.3 * (i % 6), 80 + 9.1 * (i // 6)) for i in range(24)] + [(300 - i, 60 + 40 * i) for i in range(6)]
    inside = (44.0, 28.0, 346.0, 540.0)
    boxes = place(at, [70.0] * 30, inside, [])
    for i, box in enumerate(boxes):
        assert box[2] - box[0] == pytest.approx(70)
        assert inside[0] <= box[0]
        assert inside[1] <= box[1]
        assert box[2] <= inside[2]
        assert box[3] <= inside[3]
        assert not any(overlap(box, other) for other in boxes[:i])
        assert not any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in at)


def test_a_label_without_room_is_left_out():
    assert place([(5.0, 5.0)], [70.0], (0.0, 0.0, 20.0, 20.0), []) == [(5.0, 5.0, 5.0, 5.0)]


@pytest.mark.parametrize("width", [360, 680])
def test_every_name_is_labelled_in_every_chart(width):
    names = [f"method-{i}" for i in range(30)]
    points = [Point(6 + i % 5, 95 + 0.3 * (i % 3), n, 0.1, 0.2, i) for i, n in enumerate(names)]
    series = [Line([1, 2], [90, 95 + 0.01 * i], n, slot=i) for i, n in enumerate(names)]
    for chart in (scatter(points, "s", "%", width), lines(series, "epoch", "%", width)):
        svg = ET.fromstring(chart)
        shown = [e.text for e in svg.iter("text")]
        assert set(names) <= set(shown)
        assert svg.get("viewBox").startswith(f"0 0 {width} ")
    ends = sorted(float(e.get("y")) for e in svg.iter("text") if e.text in names)
    assert min(b - a for a, b in itertools.pairwise(ends)) >= 15.9
    assert ends[-1] < float(svg.get("viewBox").split()[3])


def test_spread_by_hand():
    assert spread([10, 12, 50], 10, 100) == [10, 20, 50]
    assert spread([90, 95, 99], 10, 100) == [80, 90, 100]
    assert spread([], 10, 100) == []


def test_positions_are_to_scale():
    svg = ET.fromstring(scatter([Point(0, 0, "a"), Point(5, 50, "b"), Point(10, 100, "c")], "s", "%"))
    dots = {e.find("title").text: (float(e.get("cx")), float(e.get("cy"))) for e in svg.iter("circle")}
    assert dots["b"] == pytest.approx([(dots["a"][k] + dots["c"][k]) / 2 for k in (0, 1)], abs=0.1)
    assert dots["a"][0] < dots["c"][0]
    assert dots["a"][1] > dots["c"][1]  # up is more


def test_charts_of_one_value_and_of_none():
    for chart in (scatter([Point(1, 1, "a")], "s", "%"), lines([Line([1], [50.0], "a")], "epoch", "%")):
        assert "a" in [e.text for e in ET.fromstring(chart).iter("text")]
    for chart in (scatter([], "s", "%"), lines([], "epoch", "%"), pairs([], "x", ("a", "b"))):
        ET.fromstring(chart)


def test_what_lies_below_the_axis_is_clipped():
    svg = ET.fromstring(lines([Line([1, 2, 3], [10.0, 90.0, 95.0], "a")], "epoch", "%", y_from=90.0))
    inner = svg.find("svg")
    points = [tuple(map(float, p.split(","))) for p in inner.find("polyline").get("points").split()]
    bottom = float(inner.get("y")) + float(inner.get("height"))
    assert points[0][1] > bottom >= points[1][1]


def test_text_helpers():
    assert esc("<a b=\"c\" d='e'>&\x07") == "&lt;a b=&quot;c&quot; d=&#x27;e&#x27;&gt;&amp; "
    assert fit("short", 500) == "short"
    cut = fit("a very long name of a method", 80)
    assert cut.endswith("…")
    assert "a very long".startswith(cut[:-1])
    assert text_width(cut) <= 80
