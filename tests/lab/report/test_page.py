"""The report says what the figures say: checked against hand computation, never against the code's own output."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from ausam_lab.records.comparison import NamedRun
from ausam_lab.records.run import Environment, Score
from ausam_lab.report.pages.comparison import render
from ausam_lab.report.summary import compare_rows, headline, score_table, text, verdict_table
from tests.lab.helpers import HARDWARE, a_comparison, named
from tests.lab.report.example import FIGURES, LABELS, compared

VOID = {"meta", "link", "br", "hr", "img"}


@pytest.fixture
def results():
    return compared(FIGURES)


def only(*names):
    return compared({k: FIGURES[k] for k in names})


class Page(HTMLParser):
    """Balanced tags, the text, and what the scripts hold."""

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


def rows_of(chart, layer="marks"):
    """The rows of a layer of a chart, and the fields that pointing at it shows."""
    drawn = next(part for part in chart["layer"] if part["name"] == layer)
    rows = drawn.get("data", chart["data"])["values"]
    return rows, [field["field"] for field in drawn["encoding"].get("tooltip", ())]


def against(comparison, rival):
    return next(list(line.cells[1:]) for line in verdict_table(comparison)[0].lines if line.cells[0] == rival)


# -- the headline ------------------------------------------------------------------------------------------------------


def test_the_headline_names_the_best_row_with_its_cost_then_ours_then_what_is_open(results):
    assert headline(results) == (
        "SAM has the best test accuracy: 96.00 %, at 2x SGD's cost. "
        "AUSAM-0.5 reaches 95.50 % at SGD's cost, better than SGD and SAM (half the epochs), worse than SAM. "
        "Too few seeds to tell AUSAM-0.5 from SAM+Random."
    )


@pytest.mark.parametrize(("names", "best"), [(("sgd", "sam"), "SAM"), (("sgd", "ausam-0.5"), "AUSAM-0.5")])
def test_a_headline_has_at_most_three_sentences_whoever_is_best(names, best):
    said = headline(only(*names))
    assert said.startswith(f"{best} has the best test accuracy")
    assert len(re.findall(r"\.(?= |$)", said)) <= 3


def test_a_large_difference_with_a_wide_interval_is_open():
    wide = compared({"sgd": ([80.0, 90.0, 60.0], 6.0, 2000), "ausam-0.5": ([91.0, 92.0, 90.0], 6.0, 2000)})
    assert "Too few seeds to tell AUSAM-0.5 from SGD." in headline(wide)
    assert against(wide, "SGD")[0] == "too few seeds to tell"
    assert "differ" not in headline(wide)


def test_one_seed_and_equal_differences_decide_nothing():
    single = compared({k: (v[0][:1], *v[1:]) for k, v in FIGURES.items()})
    assert "Too few seeds to tell AUSAM-0.5 from SAM, SGD, SAM (half the epochs) and SAM+Random." in headline(single)
    assert against(single, "SGD") == ["too few seeds to tell", "+1.60", "–"]
    assert not any(
        word in text(single, verbose=True) + render(single).split("<script")[0] for word in ("±", "over seeds. The")
    )
    equal = compared({"sam": ([90.0, 91.0], 12.0, 4000), "ausam-0.5": ([90.5, 91.5], 6.0, 2000)})
    assert against(equal, "SAM") == ["too few seeds to tell", "+0.50", "–"]


def test_nothing_or_not_all_finished(results):
    assert headline(compared({})) == "No run has finished yet."
    assert "No run has finished yet." in render(compared({}))
    assert "15 runs so far" in text(replace(results, complete=False))
    assert ("Holm's" in text(results), "Holm's" in text(results, verbose=True)) == (False, True)
    assert "15 runs so far" in render(replace(results, complete=False))


# -- the figures behind it ---------------------------------------------------------------------------------------------


def test_the_figures_of_the_headline_stand_under_it(results):
    # differences of standard deviation 0.1 over 3 seeds: 4.303 * 0.1 / sqrt(3) = 0.25; p = 0.0131, third of four: twice
    expected = [
        ("SAM", "worse", "−0.50 [−0.75, −0.25]*", "0.026"),
        ("SGD", "better", "+1.50 [+1.25, +1.75]*", "0.006"),
        ("SAM (half the epochs)", "better", "+1.00 [+0.75, +1.25]*", "0.010"),
        ("SAM+Random", "too few seeds to tell", "+0.30 [−0.78, +1.38]", "0.355"),
    ]
    assert [line.cells for line in verdict_table(results)[0].lines] == expected
    assert "corrected for 4 comparisons" in verdict_table(results)[1]


def test_a_headline_is_one_family_of_comparisons():
    # Differences of 0.4, 0.6 and 0.8: p = 0.035 by the t test, significant if nothing else had been asked.
    close = {"sam+random": ([94.8, 95.0, 94.9], *FIGURES["sam+random"][1:])}
    assert against(compared(FIGURES | close), "SAM+Random") == ["better", "+0.60 [+0.10, +1.10]*", "0.035"]
    # SAM at 0.4, 0.6, 0.8 above, p = 0.035 too: as the third of four it counts twice, and so does what follows it.
    far = compared(FIGURES | close | {"sam": ([95.6, 96.2, 96.5], 12.0, 4000)})
    assert against(far, "SAM+Random") == ["too few seeds to tell", "+0.60 [+0.10, +1.10]", "0.070"]


def test_rivals_come_from_the_kind_of_a_row_and_its_cost():
    def rivals(figures, name):
        return [rival.name for row, rival, _ in compare_rows(compared(figures)) if row.name == name]

    dear = FIGURES | {"sam@0.5": (FIGURES["sam@0.5"][0], 6.0, 2800)}  # a third more than 2068
    assert rivals(dear, "ausam-0.5") == ["sam", "sgd", "sam+random"]
    own = FIGURES | {"mine": ([95.0, 95.1, 95.2], 6.0, 2000, "own")}
    assert rivals(own, "mine") == ["sam", "sgd", "sam@0.5", "sam+random", "ausam-0.5"]
    assert next(iter(compare_rows(compared(own))))[0].name == "mine"  # the user's own come first
    three = FIGURES | {f"ausam-0.{i}": ([95.0, 95.1, 94.7], 6.0, 2000) for i in (4, 6)}
    assert list(dict.fromkeys(row.name for row, *_ in compare_rows(compared(three)))) == ["ausam-0.5", "ausam-0.4"]
    assert "Add sam+random or sgd@1x0.5" in verdict_table(only("sgd", "sam", "ausam-0.5"))[1]


def test_the_table_of_a_terminal_is_sorted_and_has_80_columns(results):
    lines = text(results).splitlines()
    assert [line.split()[0] for line in lines[2:7]] == ["SAM", "AUSAM-0.5", "SAM+Random", "SAM", "SGD"]
    assert max(map(len, lines)) < 80
    assert lines[2].split() == ["SAM", "96.00", "±", "0.30", "●", "2x", "2x", "–"]
    # SGD less SAM: -2.1, -1.9, -2.0
    assert lines[6].split() == ["SGD", "94.00", "±", "0.36", "1x", "1x", "−2.00", "[−2.25,", "−1.75]*"]


def test_time_is_cpu_time_or_that_of_the_device(results):
    assert "CPU time" in score_table(results).head  # half of the seconds that went by, in the example
    gpu = replace(HARDWARE, device="cuda")
    runs = [*named("sam", 90, 91, seconds=8.0, hardware=gpu), *named("sgd", 80, 81, seconds=5.0, hardware=gpu)]
    runs = [replace(r, run=replace(r.run, cpu_seconds=1.0)) for r in runs]
    table = score_table(a_comparison(runs))
    assert (table.head[3], [line.cells[3] for line in table.lines]) == ("Time", ["1.6x", "1x"])
    alone = score_table(a_comparison(named("sam", 90, 91, seconds=8.0)))
    assert (alone.head[3:], alone.lines[0].cells[3]) == (
        ("Time (s)",),
        "8.00",
    )


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_is_whole_and_fetches_nothing(results):
    source = render(results)
    page = Page(source)
    for part in (headline(results), "ausam compare sgd sam ausam-0.5", "a cpu", "resnet-tiny", "abc"):
        assert part in page.text
    assert len(page.charts) == 2
    assert "default-src 'none'" in source
    assert not [value for name, value in page.attributes if name in ("src", "href") and not value.startswith("data:")]
    assert len(source.encode()) < 1.3e6


def test_every_name_is_escaped(results):
    evil = "</script><script>alert(1)</script><img src=x onerror=y>"
    before = Page(render(results)).tags
    rows = [replace(r, **dict.fromkeys(("label", "pair"), evil)) for r in results.rows]
    place = Environment(replace(HARDWARE, cpu=evil), {evil: evil}, evil)
    every = [NamedRun(evil + r.name, replace(r.run, environment=place), r.curve) for r in results.runs]
    changed = replace(
        results,
        **dict.fromkeys(("title", "command", "created"), evil),
        config=replace(results.config, data=evil, model=evil),
        rows=tuple(replace(r, name=evil + r.name) for r in rows),
        runs=tuple(every),
    )
    page = Page(render(changed))
    assert set(page.tags) <= {*before}
    shown = [row["method"] for chart in page.charts for row in chart["data"]["values"]]
    assert all(evil in name for name in shown)
    assert len({name.split(" · ")[0] for name in shown}) == 5  # five rows with one label are told apart by their names


def test_charts_carry_the_figures(results):
    scores, curves = Page(render(results)).charts
    rows, hover = rows_of(scores)
    assert hover == ["method", "score", "cost", "seed"]
    assert [row["method"] for row in rows][:2] == ["SAM · 2x", "AUSAM-0.5 · 1x"]  # best first
    mine = rows[1]
    assert (mine["x"], mine["score"]) == (95.5, "95.50 ± 0.26 %")
    assert (mine["low"], mine["high"]) == pytest.approx((95.2354, 95.7646), abs=1e-3)  # 95.2, 95.6, 95.7
    runs, _ = rows_of(scores, "small")
    assert [row["x"] for row in runs if row["method"] == mine["method"]] == [95.2, 95.6, 95.7]
    rules, _ = rows_of(scores, "rules")
    assert [(row["x"], row["text"]) for row in rules] == [(94.0, "SGD"), (96.0, "SAM")]
    rows, _ = rows_of(curves, "dots")
    ends = [(r["x"], r["y"], r["low"], r["high"], r["runs"]) for r in rows if r["method"] == "AUSAM-0.5"]
    assert ends == [(1, 41, 40, 42, 3), (2, 95.5, 95.2, 95.7, 3)]
    one = compared({k: (v[0][:1], *v[1:]) for k, v in FIGURES.items()})
    assert not [row for row in rows_of(Page(render(one)).charts[0])[0] if "low" in row]  # one run has no bars


def test_the_score_has_its_own_name(results):
    other = [replace(r, run=replace(r.run, test=Score(r.run.test.value, "PCKh@0.5"))) for r in results.runs]
    page = Page(render(a_comparison(other, LABELS))).text
    assert "test PCKh@0.5" in page
    assert "ccuracy" not in page


def test_skipped_steps_stand_under_the_table():
    runs = [*named("sam", 90, 91, skipped_steps=3), *named("sgd", 80, 81)]
    assert "sam: 6 steps skipped in 2 runs" in render(a_comparison(runs))
    assert "skipped" not in render(a_comparison(named("sgd", 80, 81)))
