"""The report says what the figures say: checked against hand computation, never against the code's own output."""

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from ausam_lab.config import Config
from ausam_lab.experiments import compare
from ausam_lab.paper import tables
from ausam_lab.paper.tables import PaperTable, Published, TableCell, TableColumn
from ausam_lab.records.comparison import NamedRun
from ausam_lab.records.run import Environment, SampleGroup, SelectionSummary
from ausam_lab.records.score import Score
from ausam_lab.report import html
from ausam_lab.report.pages.comparison import (
    labelled_apart,
    mislabelled_sentence,
    pictures,
    rare_class_sentence,
    render,
)
from ausam_lab.report.runs_csv import runs_csv
from ausam_lab.report.summary import compare_rows, comparison_lines, comparison_text, conclusion, headline
from tests.helpers import few_of
from tests.lab.helpers import HARDWARE, a_comparison, named
from tests.lab.report.example import FIGURES, LABELS, compared

VOID = {"meta", "link", "br", "hr", "img"}


@pytest.fixture
def results():
    return compared(FIGURES)


def only(*names):
    return compared({k: FIGURES[k] for k in names})


def with_scores(name, scores):
    return compared(FIGURES | {name: (scores, *FIGURES[name][1:])})


class Page(HTMLParser):
    """Balanced tags, every attribute, the text, and what the scripts hold."""

    def __init__(self, page):
        super().__init__()
        self.open, self.attributes, self.tags, self.text, self.scripts = [], [], [], "", []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.scripts.append([dict(attrs).get("type", ""), ""])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" in self.open:
            self.scripts[-1][1] += data
        elif "style" not in self.open:
            self.text += data.replace("\u00a0", " ")

    @property
    def charts(self):
        """The specifications of the charts."""
        return [json.loads(text) for kind, text in self.scripts if kind == "application/json"]

    @property
    def code(self):
        """The scripts that run."""
        return [text for kind, text in self.scripts if kind != "application/json"]


def rows_of_tables(page):
    """The figures of every line of every table."""
    return [re.findall(r"<td[^>]*>(.*?)</td>", line) for line in re.findall(r"<tr.*?</tr>", page, re.S)]


def svgs(page):
    """Every drawing for readers without scripts, parsed as XML."""
    return [ET.fromstring(s) for s in re.findall(r"<noscript>(.*?)</noscript>", page, re.S)]


def rows_of(chart, layer="marks"):
    """The rows of a layer of a chart, by what pointing at it shows."""
    drawn = next(part for part in chart["layer"] if part["name"] == layer)
    rows = chart["datasets"][drawn.get("data", chart["data"])["name"]]
    return rows, [(t["field"], t["title"]) for t in drawn["encoding"]["tooltip"]]


def test_headline_is_a_plain_sentence_or_two(results):
    assert headline(results) == (
        "AUSAM-0.5 reaches 95.5 % test accuracy in 53 % of SAM's training time (SAM: 96.0 %, SGD: 94.0 %). "
        "It beats SGD and SAM@0.5, falls behind SAM and is not shown to differ from SAM+random."
    )


def test_the_figures_of_the_headline_stand_under_it(results):
    # differences of standard deviation 0.1 over 3 seeds: 4.303 * 0.1 / sqrt(3) = 0.25; p = 0.0131, third of four: twice
    expected = [
        ["AUSAM-0.5", "SAM", "−0.50 [−0.75, −0.25]*", "0.026", "worse"],
        ["AUSAM-0.5", "SGD", "+1.50 [+1.25, +1.75]*", "0.006", "better"],
        ["AUSAM-0.5", "SAM@0.5", "+1.00 [+0.75, +1.25]*", "0.010", "better"],
        ["AUSAM-0.5", "SAM+random", "+0.30 [−0.78, +1.38]", "0.355", "no difference shown"],
    ]
    assert comparison_lines(results) == expected
    page = render(results)
    for _, rival, difference, p, verdict in expected:
        assert [rival, difference, p, verdict] in rows_of_tables(page)
        assert re.search(rf"{re.escape(rival)} +{re.escape(difference)} +{p} +{verdict}", conclusion(results))
    assert "p and verdict are corrected for the 4 comparisons of this table (Holm), the intervals are not." in page


def against(comparison, rival):
    return next(line[2:] for line in comparison_lines(comparison) if line[1] == rival)


def test_a_headline_is_one_family_of_comparisons():
    # Differences of 0.4, 0.6 and 0.8: p = 0.035 by the t test, beyond chance if nothing else had been asked.
    close = {"sam+random": ([94.8, 95.0, 94.9], *FIGURES["sam+random"][1:])}
    assert against(compared(FIGURES | close), "SAM+random") == ["+0.60 [+0.10, +1.10]*", "0.035", "better"]
    # SAM at 0.4, 0.6, 0.8 above, p = 0.035 too: as the third of four it counts twice, and so does what follows it.
    far = compared(FIGURES | close | {"sam": ([95.6, 96.2, 96.5], 12.0, 4000)})
    assert against(far, "SAM+random") == ["+0.60 [+0.10, +1.10]", "0.070", "no difference shown after correction"]
    assert "is not shown to differ from SAM and SAM+random" in headline(far)


def test_headline_says_when_ausam_loses():
    comparison = with_scores("sam+random", [96.2, 96.6, 96.9])
    assert "falls behind SAM and SAM+random" in headline(comparison)
    assert against(comparison, "SAM+random")[0].startswith("−1.07")
    assert "beats SGD" in headline(comparison)


def test_one_run_decides_nothing():
    single = compared({k: (v[0][:1], *v[1:]) for k, v in FIGURES.items()})
    text = headline(single)
    assert "AUSAM-0.5 reaches 95.2 % test accuracy" in text
    assert "With one common seed there is no spread, so some comparisons cannot be decided." in text
    assert against(single, "SGD") == ["+1.60", "–", "open (one seed)"]
    assert "beats" not in text
    assert "±" not in comparison_text(single).partition("\n\n")[0]


def test_only_baselines_of_about_the_same_cost_count():
    text = conclusion(compared(FIGURES | {"sam@0.5": (FIGURES["sam@0.5"][0], 6.0, 2800)}))  # a third more than 2068
    assert "SAM@0.5" not in text
    assert "SAM+random" in text
    equal_steps = compared(FIGURES | {"sam@0.5x0.5": FIGURES["sam@0.5"]})
    assert against(equal_steps, "SAM@0.5X0.5")[0].startswith("+1.00")
    assert "No baseline of the same cost was run (sam@0.5x0.5, sam+random)" in headline(only("sgd", "sam", "ausam-0.5"))


@pytest.mark.parametrize("method", ["sam-ascent-0.5", "gsam"])
def test_the_random_twin_of_a_method_is_a_baseline_of_the_same_cost(method):
    rows = {f"{method}+trusted-0.67": FIGURES["ausam-0.5"], f"{method}+random-0.67": FIGURES["sam+random"]}
    comparison = compared({name: FIGURES[name] for name in ("sgd", "sam")} | rows)
    pairs = (replace(row, pair="Trusted" if "trusted" in row.name else row.pair) for row in comparison.rows)
    text = headline(replace(comparison, rows=tuple(pairs)))
    assert "No baseline of the same cost" not in text
    assert f"is not shown to differ from {method.upper()}+RANDOM-0.67" in text


def test_headline_without_sam_gives_seconds():
    text = headline(only("sgd", "ausam-0.5", "sam+random"))
    assert text.startswith("AUSAM-0.5 reaches 95.5 % test accuracy in 6.4 s of training (SGD: 94.0 %).")
    assert "is not shown to differ from SAM+random" in text  # 6.2 s is about the same cost as 6.4 s


def test_headline_without_sgd_or_ausam():
    assert "SGD" not in headline(only("sam", "ausam-0.5", "sam+random"))
    text = headline(only("sgd", "sam"))
    assert text == "SAM reaches 96.0 % test accuracy (SGD: 94.0 %). No row that chooses by scores has finished."
    assert conclusion(only("sgd", "sam")) == text


def test_headline_when_nothing_or_not_all_finished(results):
    assert headline(compared({})) == "No run has finished yet, so there is nothing to compare."
    assert headline(replace(results, complete=False)).endswith("(Unfinished: 15 runs so far.)")


def test_the_headline_is_about_one_ausam_row_and_its_table_about_two():
    comparison = compared(FIGURES | {f"ausam-0.{i}": ([95.0, 95.1, 94.7], 6.0, 2000) for i in (4, 6, 7)})
    assert "AUSAM-0.4" not in headline(comparison)
    assert [row.label for row, *_ in compare_rows(comparison)] == ["AUSAM-0.5"] * 4 + ["AUSAM-0.4"] * 4
    assert "2 more rows that choose by scores are in the table above." in conclusion(comparison)


def test_the_trusted_row_leads():
    figures = FIGURES | {"sam+trusted": ([96.5, 96.6, 96.2], 6.0, 2000, None, "SAM(rho=0.2) × Trusted(alpha=0.5)")}
    trusted = compared(figures)
    assert headline(trusted).startswith("SAM+TRUSTED reaches 96.4 %")
    assert {row.label for row, *_ in compare_rows(trusted)} == {"SAM+TRUSTED", "AUSAM-0.5"}


def test_the_best_row_is_named_first():
    """Also if the headline is about another: it is the first thing a reader wants to know."""
    better = FIGURES | {"sgd@1x0.5": ([97.0, 97.1, 97.2], 6.0, 2000)}
    assert headline(compared(better)).startswith("The best row is SGD@1X0.5 with 97.1 %. AUSAM-0.5 reaches 95.5 %")


def test_what_the_user_wrote_leads_and_meets_ausam():
    own = ([95.0, 95.1, 95.2], 6.0, 2000, None, "SAM(rho=0.2) × MiddleLoss(alpha=0.5)")
    comparison = compared(FIGURES | {"sam+mine:MiddleLoss": own})
    assert headline(comparison).startswith("SAM+MINE:MIDDLELOSS reaches 95.1 %")
    rivals = [rival.name for row, rival, _ in compare_rows(comparison) if row.name == "sam+mine:MiddleLoss"]
    assert rivals == ["sam", "sgd", "sam@0.5", "sam+random", "ausam-0.5"]


def test_ausampling_under_another_method_is_compared_with_that_method():
    figures = {
        "gsam-0.5": ([95.4, 95.5, 95.6], 6.0, 2000, None, "GSAM(rho=0.2) × AUSampling(alpha=0.5)"),
        "gsam+random": ([94.91, 95.0, 95.09], 6.0, 2000),
        "asam+random": ([99.0, 99.1, 99.2], 6.0, 2000),
    }
    comparison = compared(figures)
    assert "It beats GSAM+RANDOM." in headline(comparison)
    assert [rival.name for _, rival, _ in compare_rows(comparison)] == ["gsam+random"]


def test_text_table():
    lines = [line.split() for line in comparison_text(only("sgd", "sam")).splitlines()]
    assert lines[0] == ["Method", "Accuracy", "%", "from", "SAM", "[95", "%]", "SAM%", "Samples%", "Train", "s"]
    # SGD less SAM: -2.1, -1.9, -2.0
    sgd = ["SGD", "94.00", "±", "0.36", "−2.00", "[−2.25,", "−1.75]*", "200", "50.0", "6.0", "±", "0.1"]
    assert lines[2:4] == [sgd, ["SAM", "96.00", "±", "0.30", "●", "–", "100", "100.0", "12.0", "±", "0.1"]]


def test_a_terminal_gets_no_control_characters(results):
    evil = replace(results.rows[0], label="\x1b[31mSGD\n")
    text = comparison_text(replace(results, rows=(evil, *results.rows[1:])))
    assert "\x1b" not in text
    assert len(text.partition("\n\n")[0].splitlines()) == 7


def test_page_table(results):
    page = render(results)
    (cells,) = re.findall(r'<tr class="ours"><th.*?>AUSAM-0.5<.*?</tr>', page)
    figures = ["<u>95.50 ± 0.26</u>", "−0.50 <span>[−0.75, −0.25]*</span>", "187", "51.7", "6.4 ± 0.1", "3", "3"]
    assert re.findall(r"<td>(.*?)</td>", cells) == figures
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
    assert mislabelled_sentence(results) in page.text
    order = [
        "digits",
        "Speed, SAM = 100",
        "Accuracy against",
        "Learning curves",
        "How often",
        "Conditions",
        "resnet-tiny",
    ]
    positions = [page.text.index(part) for part in order]
    assert positions == sorted(positions)
    for text in ("ausam compare sgd sam ausam-0.5", "a cpu", "torch2", "0, 1, 2", "0.05", "20 % wrong labels"):
        assert text in page.text
    unknown = replace(results, environment=replace(results.environment, commit=None))
    assert re.search(r"commit\s*–", Page(render(unknown)).text)  # missing: a dash
    assert len(page.charts) == len(svgs(render(results))) == 4


def test_page_asks_for_nothing_and_runs_only_its_own_scripts(results):
    text = render(results)
    page = Page(text)
    assert [v for k, v in page.attributes if k in ("src", "href", "xlink:href", "srcset")] == ["data:,"]
    assert not [k for k, _ in page.attributes if k.startswith("on")]
    assert not re.search(r"url\((?!#)|@import", re.sub(r"<script>.*?</script>", "", text, flags=re.S))
    assert not re.search("https?://", json.dumps(page.charts))
    policy = next(v for k, v in page.attributes if "default-src" in str(v))
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe-eval" not in policy
    hashes = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in page.code]
    assert policy.endswith("script-src " + " ".join(f"'sha256-{h}'" for h in hashes))
    assert len(hashes) == 2  # Vega, and the few lines that start it


def test_a_page_without_charts_has_no_script():
    page = Page(render(compared({}, complete=False, data=None)))
    assert "script" not in page.tags
    assert next(v for _, v in page.attributes if "default-src" in str(v)).endswith("; script-src 'none'")


def test_the_size_of_a_page_with_25_rows():
    figures = {
        f"method-{i}": ([94.0 + i / 10, 94.5, 95.0], 6.0 + i, 2000, (10.0, [14.0, 16.0, 15.0])) for i in range(25)
    }
    assert 0.9e6 < len(render(compared(figures)).encode()) < 1.3e6


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
    assert not re.search("<script>alert|<img", text.replace(page.code[0], ""))
    assert page.code == Page(render(results)).code
    assert len(svgs(text)) == 4  # still XML
    shown = [row["method"] for chart in page.charts for row in chart["datasets"][chart["data"]["name"]]]
    assert len(set(shown)) == 5  # five rows with one label are told apart by their names
    assert all(evil.replace("\x00", " ") in name for name in shown)


PARTS = {  # what each part of the page is known by: words and figures of it, and what its chart shows
    "time": (
        ["Accuracy against training time", "Dashed: the best up to each time"],
        "test accuracy (%) against training time (s)",
    ),
    "curves": (
        ["Learning curves", "the band runs from the smallest to the largest"],
        "test accuracy (%) against epoch",
    ),
    "chosen": (
        ["How often samples were chosen", "sharpness 0.1 to 0.9"],
        "times chosen (mean) against samples, lowest to highest score (%)",
    ),
    "mislabelled": (
        ["15.0 times on average against 10.0", "more in 3 of 3 runs"],
        "times chosen (mean): correctly labelled and mislabelled",
    ),
}


def without(part, comparison):
    """The comparison without the figures of a part, and the parts that then must be missing."""
    if part == "rows":
        return replace(comparison, rows=()), set(PARTS)
    if part == "runs":
        return replace(comparison, runs=()), {"curves", "chosen", "mislabelled"}
    every = []
    for r in comparison.runs:
        selection = r.run.selection
        if part == "curves":
            every.append(replace(r, curve=()))
        elif part == "selection":
            every.append(replace(r, run=replace(r.run, selection=None)))
        else:
            known = selection and replace(selection, right=None, wrong=None)
            every.append(replace(r, run=replace(r.run, selection=known)))
    missing = {"curves": {"curves"}, "selection": {"chosen", "mislabelled"}, "labels": {"mislabelled"}}[part]
    return replace(comparison, runs=tuple(every)), missing


@pytest.mark.parametrize(
    "part", few_of(["nothing", "rows", "runs", "curves", "selection", "labels"], "nothing", "runs")
)
def test_a_page_with_a_part_missing_has_all_the_others(results, part):
    comparison, missing = (results, set()) if part == "nothing" else without(part, results)
    text = render(comparison)
    page = Page(text)
    for name, (signs, _) in PARTS.items():
        assert [sign in page.text for sign in signs] == [name not in missing] * 2, name
    shown = [about for name, (_, about) in PARTS.items() if name not in missing]
    assert [chart["description"] for chart in page.charts] == shown
    assert len(svgs(text)) == len(shown)
    assert [p.name for p in pictures(comparison)] == [name for name in PARTS if name not in missing]
    if part != "rows":
        table = re.findall(r'<th scope="row">(.*?)<small>', text)
        assert table == ["SGD", "SAM", "SAM@0.5", "AUSAM-0.5", "SAM+random"]
    for always in (headline(comparison), "ausam compare sgd sam ausam-0.5", "Conditions", "resnet-tiny", "a cpu"):
        assert always in page.text
    assert "not complete" not in page.text


def test_page_of_nothing():
    page = Page(render(compared({}, complete=False, data=None)))
    assert "No run has finished yet" in page.text
    assert "not complete" in page.text
    assert "training samples" not in page.text
    assert not {"svg", "table", "figure"} & set(page.tags)
    assert "ausam compare sgd sam ausam-0.5" in page.text


def test_answer_on_mislabelled_samples(results):
    text = mislabelled_sentence(results)
    assert "AUSAM-0.5: yes, 15.0 times on average against 10.0 (1.50 times as often; more in 3 of 3 runs)" in text
    assert "SAM+random: no clear difference, 12.1 times on average against 12.0" in text


def test_answer_is_no_when_they_are_chosen_less_and_open_when_runs_disagree():
    less = compared(FIGURES | {"ausam-0.5": (*FIGURES["ausam-0.5"][:3], (10.0, [5.0, 5.0, 5.0]))})
    assert "AUSAM-0.5: no, less often, 5.0 times on average against 10.0 (0.50 times" in mislabelled_sentence(less)
    both = compared(FIGURES | {"ausam-0.5": (*FIGURES["ausam-0.5"][:3], (10.0, [40.0, 5.0, 5.0]))})
    assert "AUSAM-0.5: no clear difference, 16.7 times" in mislabelled_sentence(both)


def test_answer_without_known_labels(results):
    every = []
    for r in results.runs:
        selection = r.run.selection and replace(r.run.selection, right=None, wrong=None)
        every.append(replace(r, run=replace(r.run, selection=selection)))
    unknown = replace(results, runs=tuple(every))
    assert mislabelled_sentence(unknown).startswith("It is not known")


def test_charts_carry_the_figures(results):
    time, curves, chosen, labels = Page(render(results)).charts
    rows, hover = rows_of(time)
    assert [title for _, title in hover] == ["method", "accuracy", "training time", "runs"]
    mine = next(row for row in rows if row["method"] == "AUSAM-0.5")
    assert [mine[key] for key, _ in hover] == ["AUSAM-0.5", "95.50 ± 0.26 %", "6.41 ± 0.10 s", 3]
    assert (mine["x"], mine["y"]) == pytest.approx((6.41, 95.5))
    assert (mine["low_x"], mine["high_x"]) == pytest.approx((6.31, 6.51))
    assert (mine["low_y"], mine["high_y"]) == pytest.approx((95.2354, 95.7646), abs=1e-3)  # 95.2, 95.6, 95.7
    assert [row["method"] for row in rows if row.get("strong")] == ["AUSAM-0.5"]
    runs, hover = rows_of(time, "runs")
    mine = [[row[key] for key, _ in hover] for row in runs if row["method"] == "AUSAM-0.5"]
    assert mine[1] == ["AUSAM-0.5", "95.60 %", "6.41 s", 1]
    rows, _ = rows_of(curves, "dots")
    ends = [row for row in rows if row["method"] == "AUSAM-0.5"]
    assert [(r["x"], r["y"], r["low"], r["high"], r["runs"]) for r in ends] == [
        (1, 41, 40, 42, 3),
        (2, 95.5, 95.2, 95.7, 3),
    ]
    rows, hover = rows_of(chosen, "dots")
    assert ("wrong", "mislabelled") in hover
    # 10 and 30 of 40 samples: the middles lie at 5/40 and 25/40
    ends = [row for row in rows if row["method"] == "AUSAM-0.5"]
    assert [(r["x"], r["y"], r["score"], r["wrong"]) for r in ends] == [
        (12.5, 2.0, 0.1, "0 %"),
        (62.5, 4.0, 0.9, "50 %"),
    ]
    rows, _ = rows_of(labels)
    times_chosen = {(row["method"], row["kind"]): row["x"] for row in rows}
    assert times_chosen["AUSAM-0.5", "correctly labelled"] == 10.0
    assert times_chosen["AUSAM-0.5", "mislabelled"] == 15.0


def test_equal_differences_are_not_one_seed():
    comparison = compared({"sam": ([90.0, 91.0], 12.0, 4000, None), "ausam-0.5": ([90.5, 91.5], 6.0, 2000, None)})
    assert against(comparison, "SAM") == ["+0.50", "–", "no difference shown"]
    assert "is not shown to differ from SAM" in headline(comparison)
    assert "one common seed" not in headline(comparison)
    assert "one seed" not in conclusion(comparison)


def test_a_method_has_one_colour_in_all_charts(results):
    drawn = Page(render(results)).charts[:3]
    colours = []
    for chart in drawn:
        layer = next(part for part in chart["layer"] if part["name"] in ("marks", "lines"))
        scale = layer["encoding"]["color"]["scale"]
        colours.append(dict(zip(scale["domain"], scale["range"], strict=True)))
    assert len(colours[0]) == 5
    assert colours == [colours[0]] * 3


def test_scores_stand_before_verdicts(results):
    text = Page(render(results)).text
    assert text.index("95.50 ± 0.26") < text.index("no difference shown")


def test_one_run_has_no_bars():
    single = compared({k: (v[0][:1], *v[1:]) for k, v in FIGURES.items()})
    rows, _ = rows_of(Page(render(single)).charts[0])
    assert not [row for row in rows if "low_x" in row]
    assert next(row["score"] for row in rows if row["method"] == "SAM") == "95.70 %"


def test_a_page_that_cannot_be_written_leaves_nothing_behind(results, tmp_path):
    compare.write(results, tmp_path / "new")
    assert (tmp_path / "new" / "report.html").read_text(encoding="utf-8") == render(results)
    (tmp_path / "old" / "report.html").mkdir(parents=True)
    with pytest.raises(ValueError, match="html cannot be written: Is a directory"):
        compare.write(results, tmp_path / "old")
    names = ["report.html", "results.csv", "results.json"]
    assert [sorted(p.name for p in (tmp_path / folder).iterdir()) for folder in ("new", "old")] == [names, names]


def test_skipped_steps_stand_under_the_table():
    runs = [*named("sam", 90, 91, skipped_steps=3), *named("sgd", 80, 81)]
    assert "sam: 6 steps skipped in 2 runs" in render(a_comparison(runs))
    assert "skipped" not in render(a_comparison(named("sgd", 80, 81)))


def points_of(spec, layer=None):
    return spec["datasets"][(layer or spec)["data"]["name"]]


def test_who_is_chosen_by_class():
    def chosen(head, tail):
        classes = {str(c): SampleGroup(10 - c, 0.1, head if c < 3 else tail) for c in range(9)}
        return SelectionSummary("sharpness", (SampleGroup(54, 0.1, 2.0),), classes=classes)

    runs = [
        *named("ausam-0.5", 90.0, 91.0, selection=chosen(4.0, 6.0)),
        *named("sam+random", 90.0, 91.0, selection=chosen(5.0, 5.0)),
    ]
    results = a_comparison(runs, config=Config(imbalance=0.1))
    picture = next(p for p in pictures(results) if p.name == "classes")
    points = {(r["method"], r["x"]): (r["y"], r["n"]) for r in points_of(picture.spec)}
    assert points["ausam-0.5", 0] == (4.0, 10)
    assert points["ausam-0.5", 8] == (6.0, 2)
    assert "Class 0 has 10 training samples, class 8 has 2." in picture.note
    text = rare_class_sentence(results)
    assert "ausam-0.5: 6.0 times on average against 4.0 (1.50 times as often); sam+random: 5.0 times" in text
    assert text in render(results)
    assert rare_class_sentence(a_comparison(named("sam", 90.0))) == ""


def lower(name, *scores, curve=(), **changes):
    """Named runs of a forecast, whose error is these."""
    runs = named(name, *scores, curve=curve, **changes)
    return [
        replace(r, run=replace(r.run, test=Score(r.run.test.value, "MSE", "", {"MAE": 0.4}, lower_is_better=True)))
        for r in runs
    ]


def scale_of(picture):
    return next(layer for layer in picture.spec["layer"] if layer["name"] == "lines")["encoding"]["y"]["scale"]


def test_a_score_where_lower_is_better():
    runs = [
        *lower("sgd", 0.404, 0.405, 0.4055, curve=(0.9, 0.6, 0.5, 0.45, 0.404), seconds=5.0),
        *lower("sam", 0.3857, 0.386, 0.3855, curve=(0.8, 0.5, 0.4, 0.39, 0.386), seconds=10.0),
        *lower("ausam-0.5", 0.386, 0.3862, 0.3858, curve=(0.8, 0.5, 0.4, 0.39, 0.386), seconds=5.1),
        *lower("sam+random", 0.384, 0.3843, 0.3839, curve=(0.8, 0.5, 0.4, 0.39, 0.384), seconds=5.2),
    ]
    results = a_comparison(runs)
    text = headline(results)
    assert "ausam-0.5 reaches 0.3860 test MSE in 51 % of SAM's training time" in text
    assert "It beats sgd and falls behind sam and sam+random." in text
    assert against(results, "sgd")[0].startswith("−0.0188 [")
    assert against(results, "sam+random")[0].startswith("+0.0019 [")
    assert text.endswith("Lower MSE is better.")
    assert "points" not in text
    best = next(r for r in results.rows if r.name == "sam+random")
    page = render(results)
    assert "<b>0.3841 ± 0.0002</b>" in page.replace("\xa0", " ")
    assert page.count("<b>") == 1
    assert best.merit == max(r.merit for r in results.rows)
    time, curves = pictures(results)[:2]
    steps = points_of(time.spec, next(layer for layer in time.spec["layer"] if layer["name"] == "frontier"))
    assert [round(step["y"], 4) for step in steps] == [0.4048, 0.386, 0.3841, 0.3841]
    scale = scale_of(curves)
    assert scale["domainMax"] == 0.6  # the first epochs are left out at the top
    assert "domainMin" not in scale
    rises = a_comparison(lower("sgd", 0.41, curve=(0.9, 0.5, 0.39, 0.4, 0.55)) + lower("sam", 0.38, curve=(0.9, 0.38)))
    assert (
        scale_of(pictures(rises)[1])["domainMax"] == 0.9
    )  # of two epochs none is early; nothing that comes later is cut off
    rises = a_comparison(lower("sgd", 0.41, curve=(0.9, 0.5, 0.39, 0.4, 0.55)))
    assert scale_of(pictures(rises)[1])["domainMax"] == 0.55  # a curve that gets worse again is drawn to its end
    alone = a_comparison(lower("sgd", 0.404) + lower("sam", 0.3857))
    assert headline(alone).startswith("sam reaches 0.3857 test MSE (sgd: 0.4040). No row that chooses")


def test_a_table_of_errors_says_that_lower_is_better():
    comparison = a_comparison([*lower("sam", 0.3857, 0.3859), *lower("sgd", 0.4041, 0.4043)])
    cells = tuple(TableCell(row.name, row.label, "", Published(0.381), row) for row in comparison.rows)
    column = TableColumn("one", "", "ETTh1", "ETTh1", "samformer on etth1", "headline", cells)
    table = PaperTable("t", "paper", "T", "", "", (0, 1), 4, 0, {}, "MSE", "", (column,))
    for form in (tables.text, tables.markdown, tables.latex, tables.render):
        text = form(table)
        assert "0.3858" in text
        assert "MSE, mean" in text
        assert "Lower MSE is better." in text
    assert (
        runs_csv(("", named) for named in comparison.runs)
        .splitlines()[1]
        .startswith(",sam,0,SAM(rho=0.1),Full(),3,MSE,,lower,0.3857,99.0,,,MAE 0.4,")
    )


def test_a_time_is_written_for_people():
    facts = html.facts({"created": "2026-01-31T09:05:59+00:00", "seed": 3})
    assert "<dd>2026-01-31 09:05 UTC</dd>" in facts
    assert "<dd>3</dd>" in facts


def test_of_two_labels_that_would_touch_the_lower_stands_below():
    marks = [
        {"x": 12.0, "y": 98.8, "strong": True},
        {"x": 12.5, "y": 98.3, "strong": True},
        {"x": 23.0, "y": 98.3, "strong": True},  # far to the right
        {"x": 12.5, "y": 98.2},  # has no label
        {"x": 12.0, "y": 88.0, "strong": True},  # far below
    ]
    assert [row.get("below", False) for row in labelled_apart(marks)] == [False, True, False, False, False]
