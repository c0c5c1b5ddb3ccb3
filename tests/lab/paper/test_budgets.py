"""What a choice gains at equal cost, on figures made by hand."""

import csv
import io
import re
from dataclasses import replace

import pytest
from scipy import stats

from ausam_lab.paper import budgets, equal_cost
from ausam_lab.paper.records.equal_cost import BudgetEntry, BudgetProblem, EqualCost
from ausam_lab.records import store
from ausam_lab.records.score import Score
from ausam_lab.report.statistics import rows
from ausam_lab.report.verdict import Verdict
from tests.lab.helpers import named

# name: (budget, control, scores of five seeds, twin, sgd)
FIGURES = {
    "sgd@0.5": (0.25, True, [80.0, 81.0, 79.0, 80.5, 79.5]),
    "sam+random-0.25": (0.25, True, [82.0, 83.0, 81.0, 82.5, 81.5]),
    "ausam-0.25": (0.25, False, [85.1, 86.0, 84.2, 85.3, 84.4], "sam+random-0.25", "sgd@0.5"),
    "saf": (0.25, False, [82.3, 82.7, 81.2, 82.6, 81.2], "", "sgd@0.5"),
    "sgd": (0.5, True, [86.0, 87.0, 85.0, 86.5, 85.5]),
    "sam+random": (0.5, True, [85.0, 86.0, 84.0, 85.5, 84.5]),
    "ausam-0.5": (0.5, False, [84.1, 85.2, 83.0, 84.4, 83.6], "sam+random", "sgd"),
    "sam": (1.0, True, [88.0, 89.0, 87.0, 88.5, 87.5]),
}


def entry(name, budget, control, scores, twin="", sgd="", lower=False):
    runs = named(name, *scores)
    nll = {s: s / 100 for s in scores}
    runs = [
        replace(r, run=replace(r.run, test=Score(v := r.run.test.value, "error", "%", {}, lower, nll[v], 1.0)))
        for r in runs
    ]
    (row,) = rows([(name, name.upper())], runs) if scores else (None,)
    return BudgetEntry(name, name.upper(), budget, control, row, None if row is None else budget, twin, sgd)


def problem(figures=FIGURES, name="digits", seeds=5, primary="ausam-0.25", margin=0.0, **how):
    entries = [entry(name, *figure, **how) for name, figure in figures.items()]
    entries = budgets.compare_entries(entries)
    return BudgetProblem(name, f"the {name}", "a network", "", tuple(range(seeds)), entries, primary, margin)


def benchmark(*problems, **changes):
    fields = {
        "table": "equal-cost",
        "title": "At equal cost",
        "command": "ausam reproduce equal-cost",
        "created": "now",
    }
    counted = {"runs": 40, "missing": 0, "tuning": "rho on a validation part", "problems": problems or (problem(),)}
    return EqualCost(**fields | counted | changes)


def p_of(name, rival):
    return stats.ttest_rel(FIGURES[name][2], FIGURES[rival][2]).pvalue


def test_contenders_are_compared_with_their_twin_and_with_sgd_corrected_within_the_budget():
    entries = {e.name: e for e in problem().entries}
    ausam, saf = entries["ausam-0.25"], entries["saf"]
    assert ausam.from_twin.mean == pytest.approx(3.0)
    assert ausam.from_twin.p == pytest.approx(p_of("ausam-0.25", "sam+random-0.25"))  # the only twin of its budget
    both = sorted([p_of("ausam-0.25", "sgd@0.5"), p_of("saf", "sgd@0.5")])
    assert sorted([ausam.from_sgd.p, saf.from_sgd.p]) == pytest.approx([2 * both[0], max(2 * both[0], both[1])])
    assert saf.from_twin is None
    assert entries["ausam-0.5"].from_sgd.p == pytest.approx(p_of("ausam-0.5", "sgd"))  # another budget, another family
    controls = [e for e in problem().entries if e.control]
    assert {(e.from_twin, e.from_sgd) for e in controls} == {(None, None)}


@pytest.mark.parametrize(
    ("primary", "margin", "expected"),
    [
        ("ausam-0.25", 0.0, Verdict.BETTER),
        ("ausam-0.5", 0.0, Verdict.WORSE),
        ("saf", 0.0, Verdict.UNFINISHED),  # it has no twin
    ],
)
def test_the_primary_verdict(primary, margin, expected):
    assert budgets.primary_verdict(problem(primary=primary, margin=margin)) is expected


def test_level_needs_an_interval_within_the_margin():
    close = FIGURES | {"ausam-0.25": (0.25, False, [82.1, 82.9, 81.1, 82.4, 81.5], "sam+random-0.25", "sgd@0.5")}
    assert budgets.primary_verdict(problem(close)) is Verdict.UNCLEAR
    assert budgets.primary_verdict(problem(close, margin=0.05)) is Verdict.UNCLEAR
    assert budgets.primary_verdict(problem(close, margin=0.5)) is Verdict.LEVEL


def test_a_missing_seed_leaves_the_verdict_open():
    short = FIGURES | {"ausam-0.25": (0.25, False, [85.1, 86.0], "sam+random-0.25", "sgd@0.5")}
    assert budgets.primary_verdict(problem(short)) is Verdict.UNFINISHED
    without = FIGURES | {"sam+random-0.25": (0.25, True, [])}
    assert budgets.primary_verdict(problem(without)) is Verdict.UNFINISHED
    assert "No conclusion yet" in equal_cost.headline(benchmark(problem(without)))


def test_an_error_is_better_if_it_is_lower():
    assert budgets.primary_verdict(problem(lower=True)) is Verdict.WORSE
    assert budgets.primary_verdict(problem(lower=True, primary="ausam-0.5")) is Verdict.BETTER


def test_headroom_is_sam_less_the_random_twin():
    assert budgets.headroom(problem()).mean == pytest.approx(6.0)
    assert budgets.headroom(problem(primary="ausam-0.5")).mean == pytest.approx(3.0)
    assert budgets.headroom(problem({k: v for k, v in FIGURES.items() if k != "sam"})) is None


def test_tables_in_every_form():
    whole = benchmark(problem(), problem(name="images", primary="ausam-0.5"))
    text = equal_cost.text(whole)
    assert "as many random samples, the chosen ones were better on the digits and worse on the images" in text
    (line,) = [part for part in text.splitlines() if part.startswith("the digits  ")]
    assert "+3.00 [+2.80, +3.20]*" in line  # score
    assert "+0.030 [+0.028, +0.032]*" in line  # likelihood
    assert "better than chance" in line
    assert "SAM+RANDOM-0.25 (c)" in text
    markdown = equal_cost.markdown(whole)
    assert markdown.count("| 25 % | AUSAM-0.25 |") == 2
    table = list(csv.DictReader(io.StringIO(equal_cost.csv_text(whole))))
    (row,) = [r for r in table if r["problem"] == "digits" and r["name"] == "ausam-0.25"]
    assert float(row["from_twin"]) == pytest.approx(3.0)
    assert float(row["nll"]) == pytest.approx(0.85)
    assert (row["primary"], row["control"]) == ("True", "False")
    assert r"\toprule" in equal_cost.latex(whole)
    page = equal_cost.render(whole)
    assert 'class="good"' in page
    assert 'class="bad"' in page
    assert page.index("gain in accuracy") < page.index("The primary contrasts")


def test_what_has_not_run_is_named():
    empty = problem({name: (*figure[:2], [], *figure[3:]) for name, figure in FIGURES.items()}, name="images")
    whole = benchmark(problem(), empty, missing=40)
    notes = " ".join(equal_cost.footnotes(whole))
    assert "Not run: the images." in notes
    assert "40 of 40 runs are missing." in notes
    assert "the images" not in equal_cost.text(whole).split("Cost is the number")[0].replace("unfinished", "")


def test_a_row_off_its_budget_is_named():
    dear = problem()
    dear = replace(dear, entries=tuple(replace(e, cost=0.4) if e.name == "sgd@0.5" else e for e in dear.entries))
    assert "More than 10 % off their budget: SGD@0.5 on the digits" in " ".join(equal_cost.footnotes(benchmark(dear)))


def test_records_come_back(tmp_path):
    store.write(tmp_path / "results.json", benchmark())
    assert store.read_finished(tmp_path / "results.json", EqualCost) == benchmark()


def test_the_charts_have_a_mark_per_entry():
    spec = str(equal_cost.frontier(problem()))
    assert all(name.upper() in spec for name in FIGURES)
    assert equal_cost.gains(benchmark(problem({}, primary=""))) is None
    marks = re.findall(r"'gain': (-?[\d.]+)", str(equal_cost.gains(benchmark())))
    assert [float(gain) for gain in marks if float(gain)] == pytest.approx([3.0, 5.0])
