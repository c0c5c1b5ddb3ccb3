"""The report says what the figures say: checked against hand computation, never against the code's own output."""

import itertools
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from ausam.lab.config import Config
from ausam.lab.problems.problem import Score
from ausam.lab.report.chart_text import esc, fit, place, spread, text_width
from ausam.lab.report.charts import Line, Point, domain, frontier, lines, pairs, scatter, tick_labels, ticks
from ausam.lab.report.page import answer, render, write_report
from ausam.lab.report.records import CurvePoint, Environment, Group, NamedRun, Selection
from ausam.lab.report.summary import comparison_text, headline
from tests.lab.helpers import HARDWARE, a_comparison, a_run

VOID = {"meta", "link", "br", "hr", "img"}

# Per name: scores of three seeds, seconds, samples through both passes (SAM: 4000), times chosen (right, wrong).
# AUSAM-0.5 less SGD is 1.6, 1.5, 1.4; less SAM@0.5 1.0, 1.1, 0.9; less SAM+random 0.0, 0.8, 0.1; less SAM -0.5, -0.4,
# -0.6
FIGURES = {
    "sgd": ([93.6, 94.1, 94.3], 6.0, 2000, None),
    "sam": ([95.7, 96.0, 96.3], 12.0, 4000, None),
    "sam@0.5": ([94.2, 94.5, 94.8], 6.0, 2000, None),
    "ausam-0.5": ([95.2, 95.6, 95.7], 6.41, 2068, (10.0, [14.0, 16.0, 15.0])),
    "sam+random": ([95.2, 94.8, 95.6], 6.2, 2068, (12.0, [12.1, 12.1, 12.1])),
}
LABELS = {"sgd": "SGD", "sam": "SAM", "sam@0.5": "SAM@0.5", "ausam-0.5": "AUSAM-0.5", "sam+random": "SAM+random"}
PAIRS = {"ausam-0.5": "SAM(rho=0.2) × AUSampling(alpha=0.5)"}


def runs(name, scores, seconds, samples, chosen=None, pair=None):
    found = []
    for seed, score in enumerate(scores):
        selection = None
        if chosen:
            bins = Group(10, 0.1, 2.0, 0.0), Group(30, 0.9, 4.0, 0.5)
            selection = Selection("sharpness", bins, Group(20, 0.1, chosen[0]), Group(20, 0.1, chosen[1][seed]))
        run = a_run(
            score,
            seed,
            seconds + 0.1 * (seed - 1),
            samples_forward=samples // 2,
            samples_backward=samples // 2,
            selection=selection,
            pair=pair or PAIRS.get(name, "SAM(rho=0.2) × Full()"),
        )
        curve = CurvePoint(1, 1.0, 40.0 + seed, 1.0), CurvePoint(2, math.nan, score, 2.0)
        found.append(NamedRun(name, run, curve))
    return found


def compared(figures, **changes):
    every = [r for name, figure in figures.items() for r in runs(name, *figure)]
    config = Config(model="resnet-tiny", lr=0.05, label_noise=0.2)
    labels = {name: LABELS.get(name, name.upper()) for name in figures}
    return a_comparison(every, labels, **{"command": "ausam compare sgd sam ausam-0.5", "config": config} | changes)


@pytest.fixture
def results():
    return compared(FIGURES)


def only(*names):
    return compared({k: FIGURES[k] for k in names})


def with_scores(name, scores):
    return compared(FIGURES | {name: (scores, *FIGURES[name][1:])})


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
    assert "AUSAM-0.5 reaches 95.50 ± 0.26 % test accuracy in 53 % of SAM's training time." in text  # 6.41 / 12
    assert "SAM 96.00 ± 0.30 %, SGD 94.00 ± 0.36 % in 50 %, SAM@0.5 94.50 ± 0.30 % in 50 %" in text
    assert "SAM+random 95.20 ± 0.40 % in 52 %" in text
    # differences of standard deviation 0.1 over 3 seeds: 4.303 * 0.1 / sqrt(3) = 0.25; p = 0.0131, third of four: twice
    assert "Against SAM: −0.50 points, 95 % interval −0.75 to −0.25, p 0.026, beyond chance." in text


def test_headline_claims_what_is_beyond_chance_and_admits_what_is_not(results):
    text = headline(results)
    assert "AUSAM-0.5 beats SGD (+1.50 points, 95 % interval +1.25 to +1.75, p 0.006) and SAM@0.5 (+1.00 points" in text
    assert "; it is not shown to beat SAM+random (+0.30 points, 95 % interval −0.78 to +1.38, p 0.355)." in text


def test_a_headline_is_one_family_of_comparisons():
    # Differences of 0.4, 0.6 and 0.8: p = 0.035 by the t test, beyond chance if nothing else had been asked.
    close = {"sam+random": ([94.8, 95.0, 94.9], *FIGURES["sam+random"][1:])}
    assert "and SAM+random (+0.60 points, 95 % interval +0.10 to +1.10, p 0.035)." in headline(
        compared(FIGURES | close)
    )
    # SAM at 0.4, 0.6, 0.8 above, p = 0.035 too: as the third of four it counts twice, and so does what follows it.
    far = close | {"sam": ([95.6, 96.2, 96.5], 12.0, 4000)}
    assert "is not shown to beat SAM+random (+0.60 points, 95 % interval +0.10 to +1.10, p 0.070)." in headline(
        compared(FIGURES | far)
    )


def test_headline_says_when_ausam_loses():
    text = headline(with_scores("sam+random", [96.2, 96.6, 96.9]))
    assert "falls behind SAM+random (−1.07 points" in text
    assert "beats SGD" in text


def test_one_run_decides_nothing():
    single = compared({k: (v[0][:1], *v[1:]) for k, v in FIGURES.items()})
    text = headline(single)
    assert "AUSAM-0.5 reaches 95.20 % test accuracy" in text
    assert "A single common seed has no spread, so AUSAM-0.5 against SGD (+1.60 points)" in text
    assert "beats" not in text
    assert "chance" not in text
    assert "±" not in comparison_text(single).partition("\n\n")[0]


def test_only_baselines_of_about_the_same_cost_count():
    text = headline(compared(FIGURES | {"sam@0.5": (FIGURES["sam@0.5"][0], 6.0, 2800)}))  # a third more than 2068
    assert "SAM@0.5" not in text
    assert "SAM+random" in text
    assert "No baseline of about that cost (sam@0.5, sam+random) ran" in headline(only("sgd", "sam", "ausam-0.5"))


def test_headline_without_sam_gives_seconds():
    text = headline(only("sgd", "ausam-0.5", "sam+random"))
    assert text.startswith("AUSAM-0.5 reaches 95.50 ± 0.26 % test accuracy in 6.4 s of training.")
    assert "Against SAM" not in text
    assert "is not shown to beat SAM+random" in text  # 6.2 s is about the same cost as 6.4 s


def test_headline_without_sgd_or_ausam():
    assert "SGD" not in headline(only("sam", "ausam-0.5", "sam+random"))
    text = headline(only("sgd", "sam"))
    assert text.startswith("No AUSAM row has finished; the most accurate, SAM reaches 96.00 ± 0.30 % test accuracy.")
    assert "SGD 94.00 ± 0.36 % in 50 %" in text


def test_headline_when_nothing_or_not_all_finished(results):
    assert headline(compared({})) == "No run has finished yet, so there is nothing to compare."
    assert headline(replace(results, complete=False)).endswith("(Unfinished: 15 runs so far.)")


def test_many_ausam_rows_are_cut_to_two():
    text = headline(compared(FIGURES | {f"ausam-0.{i}": ([95.0, 95.1, 94.7], 6.0, 2000) for i in (4, 6, 7)}))
    assert "AUSAM-0.4 reaches" in text
    assert "AUSAM-0.6" not in text
    assert "More AUSAM rows in the table: 2." in text


def test_ausampling_under_another_method_is_compared_with_that_method():
    figures = {
        "gsam-0.5": ([95.4, 95.5, 95.6], 6.0, 2000, None, "GSAM(rho=0.2) × AUSampling(alpha=0.5)"),
        "gsam+random": ([94.91, 95.0, 95.09], 6.0, 2000),
        "asam+random": ([99.0, 99.1, 99.2], 6.0, 2000),
    }
    text = headline(compared(figures))
    assert "GSAM-0.5 beats GSAM+RANDOM (+0.50 points" in text
    assert "ASAM+RANDOM" not in text


def test_text_table():
    lines = [line.split() for line in comparison_text(only("sgd", "sam")).splitlines()]
    assert lines[0] == ["Method", "Accuracy", "%", "from", "SAM", "[95", "%]", "SAM%", "Samples%", "Train", "s"]
    # SGD less SAM: -2.1, -1.9, -2.0
    sgd = ["SGD", "94.00", "±", "0.36", "−2.00", "[−2.25,", "−1.75]*", "200", "50.0", "6.0", "±", "0.1"]
    assert lines[2:4] == [sgd, ["SAM", "96.00", "±", "0.30", "–", "100", "100.0", "12.0", "±", "0.1"]]


def test_a_terminal_gets_no_control_characters(results):
    evil = replace(results.rows[0], label="\x1b[31mSGD\n")
    text = comparison_text(replace(results, rows=(evil, *results.rows[1:])))
    assert "\x1b" not in text
    assert len(text.partition("\n\n")[0].splitlines()) == 7


def test_page_table(results):
    page = render(results)
    cells = re.findall(r"<tr class=ours><th.*?>AUSAM-0.5<.*?</tr>", page)
    figures = ["95.50 ± 0.26", "−0.50 [−0.75, −0.25]*", "187", "51.7", "6.4 ± 0.1", "3", "3"]
    assert re.findall(r"<td>(.*?)</td>", cells[0]) == figures
    assert "<b>96.00 ± 0.30</b>" in page  # the best accuracy, and only that
    assert page.count("<b>") == 1


def test_the_score_has_its_own_name_and_unit(results):
    named = [replace(r, run=replace(r.run, test=Score(r.run.test.value, "PCKh@0.5"))) for r in results.runs]
    other = a_comparison(named, LABELS)
    assert "test PCKh@0.5" in headline(other)
    page = Page(render(other)).text
    assert "PCKh@0.5, %" in page
    assert "PCKh@0.5 against training time" in page
    assert "ccuracy" not in page
    assert comparison_text(other).split()[:3] == ["Method", "PCKh@0.5", "%"]


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
    for text in ("ausam compare sgd sam ausam-0.5", "a cpu", "torch2", "0, 1, 2", "0.05", "20 % wrong labels"):
        assert text in page.text
    unknown = replace(results, environment=replace(results.environment, commit=None))
    assert re.search(r"commit\s*–", Page(render(unknown)).text)  # missing: a dash
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
    rows = [
        replace(r, **dict.fromkeys(("label", "method", "policy", "pair", "metric", "unit"), evil)) for r in results.rows
    ]
    rows = [replace(r, name=evil + r.name) for r in rows]
    every = []
    for r in results.runs:
        selection = r.run.selection and replace(r.run.selection, signal=evil)
        every.append(NamedRun(evil + r.name, replace(r.run, selection=selection), r.curve))
    environment = Environment(replace(HARDWARE, cpu=evil), {evil: evil}, evil)
    text = render(
        replace(
            results,
            title=evil,
            command=evil,
            created=evil,
            environment=environment,
            config=replace(results.config, data=evil, model=evil),
            rows=tuple(rows),
            runs=tuple(every),
        )
    )
    page = Page(text)
    assert set(page.tags) <= set(before)
    assert "&lt;script&gt;" in text
    assert not re.search("<script|<img", text)
    assert len(svgs(text)) == 8  # still XML


def test_page_without_runs_shows_no_curves(results):
    page = Page(render(replace(results, runs=())))
    assert "Accuracy against training time" in page.text
    assert "Learning curves" not in page.text
    assert "How often" not in page.text
    assert page.tags.count("svg") == 2


def test_page_of_nothing():
    page = Page(render(compared({}, complete=False, data=None)))
    assert "No run has finished yet" in page.text
    assert "This comparison is not complete." in page.text
    assert "training samples" not in page.text
    assert "svg" not in page.tags


def test_answer_on_mislabelled_samples(results):
    text = answer(results)
    assert "AUSAM-0.5: yes, 15.0 times on average against 10.0 (1.50 times as often; more in 3 of 3 runs)" in text
    assert "SAM+random: no clear difference, 12.1 times on average against 12.0" in text


def test_answer_is_no_when_they_are_chosen_less_and_open_when_runs_disagree():
    less = compared(FIGURES | {"ausam-0.5": (*FIGURES["ausam-0.5"][:3], (10.0, [5.0, 5.0, 5.0]))})
    assert "AUSAM-0.5: no, less often, 5.0 times on average against 10.0 (0.50 times" in answer(less)
    both = compared(FIGURES | {"ausam-0.5": (*FIGURES["ausam-0.5"][:3], (10.0, [40.0, 5.0, 5.0]))})
    assert "AUSAM-0.5: no clear difference, 16.7 times" in answer(both)


def test_answer_without_known_labels(results):
    every = []
    for r in results.runs:
        selection = r.run.selection and replace(r.run.selection, right=None, wrong=None)
        every.append(replace(r, run=replace(r.run, selection=selection)))
    unknown = replace(results, runs=tuple(every))
    assert "is unknown" in answer(unknown)
    assert len(svgs(render(unknown))) == 6  # the chart of scores stays, the one of labels goes


def titles(svg):
    return [e.text for e in svg.iter("title")]


def test_charts_carry_the_figures(results):
    time, _, curves, _, chosen, _, labels, _ = svgs(render(results))
    assert "AUSAM-0.5: 95.50 ± 0.26 %, 6.41 ± 0.10 s, 3 runs" in titles(time)
    assert "AUSAM-0.5: 95.50 at the end" in titles(curves)
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
        write_report(None, path)
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
