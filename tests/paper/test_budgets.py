"""Who wins at equal cost, on figures made by hand."""

import csv
import io
import re
from dataclasses import replace

import pytest
from scipy import stats

from ausam.lab.records import results as records
from ausam.lab.records.results import BudgetProblem, Entry, EqualCost
from ausam.lab.records.score import Score
from ausam.lab.report.statistics import rows
from ausam.lab.report.verdict import Verdict
from ausam.paper import budgets, equal_cost
from tests.lab.helpers import named

# name: (budget, control, scores of five seeds)
FIGURES = {
    "sgd@0.5": (0.25, True, [80.0, 81.0, 79.0, 80.5, 79.5]),
    "sam+random": (0.25, True, [82.0, 83.0, 81.0, 82.5, 81.5]),
    "ausam-0.25": (0.25, False, [85.1, 86.0, 84.2, 85.3, 84.4]),
    "saf": (0.25, False, [82.3, 82.7, 81.2, 82.6, 81.2]),
    "sgd": (0.5, True, [86.0, 87.0, 85.0, 86.5, 85.5]),
    "ausam-0.5": (0.5, False, [84.1, 85.2, 83.0, 84.4, 83.6]),
    "sam": (1.0, True, [88.0, 89.0, 87.0, 88.5, 87.5]),
    "gsam": (1.0, False, [88.3, 88.8, 87.1, 88.4, 87.4]),
}


def entry(name, budget, control, scores, lower=False):
    runs = named(name, *scores)
    runs = [replace(r, run=replace(r.run, test=Score(r.run.test.value, "error", "", {}, lower))) for r in runs]
    (row,) = rows([(name, name.upper())], runs) if scores else (None,)
    return Entry(name, name.upper(), budget, control, row, None if row is None else budget)


def problem(figures=FIGURES, name="digits", seeds=5, **how):
    entries = [entry(name, *figure, **how) for name, figure in figures.items()]
    return BudgetProblem(name, f"the {name}", "a network", "", tuple(range(seeds)), budgets.compare_entries(entries))


def benchmark(*problems, **changes):
    fields = {
        "table": "equal-cost",
        "title": "At equal cost",
        "command": "ausam reproduce equal-cost",
        "created": "now",
    }
    found = {"runs": 40, "missing": 0, "tuning": "rho on a validation part", "problems": problems or (problem(),)}
    return EqualCost(**fields | found | changes)


def verdicts(found):
    return {winner.budget: winner.verdict for winner in budgets.winners(found)}


def test_every_contender_is_compared_with_the_best_control_of_its_budget():
    found = {e.name: e for e in problem().entries}
    best = {0.25: "sam+random", 0.5: "sgd", 1.0: "sam"}
    contenders = [name for name, (_, control, _) in FIGURES.items() if not control]
    p = {}
    for name in contenders:
        budget, _, scores = FIGURES[name]
        differences = [a - b for a, b in zip(scores, FIGURES[best[budget]][2], strict=True)]
        assert found[name].against.mean == pytest.approx(sum(differences) / 5)
        p[name] = stats.ttest_1samp(differences, 0.0).pvalue
    order = sorted(contenders, key=p.get)  # Holm, literally: one family of all contenders of the problem
    corrected = [min(1.0, max(p[order[j]] * (len(order) - j) for j in range(i + 1))) for i in range(len(order))]
    assert [found[name].against.p for name in order] == pytest.approx(corrected)
    assert all(found[name].against is None for name, (_, control, _) in FIGURES.items() if control)


def test_verdicts_follow_the_differences():
    assert verdicts(problem()) == {0.25: Verdict.BETTER, 0.5: Verdict.WORSE, 1.0: Verdict.LEVEL}
    (quarter, half, _) = budgets.winners(problem())
    assert (quarter.contender.name, quarter.control.name) == ("ausam-0.25", "sam+random")
    assert (half.contender.name, half.control.name) == ("ausam-0.5", "sgd")


def test_where_lower_is_better_everything_turns_round():
    found = problem(lower=True)
    # now sgd@0.5 is the best control of a quarter, and saf, 2 above it, the best contender
    (quarter, half, _) = budgets.winners(found)
    assert (quarter.contender.name, quarter.control.name, quarter.verdict) == ("saf", "sgd@0.5", Verdict.WORSE)
    assert half.verdict is Verdict.BETTER
    assert "error (lower is better)" in equal_cost.text(benchmark(found)).lower()


def test_a_missing_run_leaves_its_budget_open_and_no_other():
    without = FIGURES | {"saf": (0.25, False, []), "sgd": (0.5, True, FIGURES["sgd"][2][:4])}
    assert verdicts(problem(without)) == {0.25: Verdict.UNFINISHED, 0.5: Verdict.UNFINISHED, 1.0: Verdict.LEVEL}
    text = equal_cost.text(benchmark(problem(without), missing=6))
    assert re.search(r"25 % +SAF +missing +– +– +– +– +0\n", text)
    assert "2 of 3 places are unfinished." in text
    assert "6 of 40 runs are missing." in text
    assert "Not run" not in text
    alone = {"sgd": (0.5, True, []), "ausam-0.5": (0.5, False, [])}
    assert verdicts(problem(alone)) == {0.5: Verdict.UNFINISHED}
    assert "No conclusion yet" in equal_cost.text(benchmark(problem(alone)))


def test_what_has_not_begun_is_named_once_and_fills_no_table():
    quarter_empty = {k: (b, c, [] if b == 0.25 else s) for k, (b, c, s) in FIGURES.items()}
    nothing = {k: (b, c, []) for k, (b, c, s) in FIGURES.items()}
    found = benchmark(problem(quarter_empty), problem(nothing, name="series"))
    text = equal_cost.text(found)
    assert "Not run: the digits at 25 %; the series." in text
    assert [table.title for table in equal_cost.tables(found)] == ["Who wins where", "the digits"]
    assert not re.search(r"^ *(the digits +)?25 %", text, re.MULTILINE)


def test_a_control_with_few_runs_is_not_the_best_by_luck():
    lucky = FIGURES | {"sgd@0.5": (0.25, True, [99.0])}
    (quarter, *_) = budgets.winners(problem(lucky))
    assert (quarter.control.name, quarter.verdict) == ("sam+random", Verdict.UNFINISHED)


def test_one_seed_decides_nothing():
    single = {name: (budget, control, scores[:1]) for name, (budget, control, scores) in FIGURES.items()}
    assert set(verdicts(problem(single, seeds=1)).values()) == {Verdict.ONE_SEED}


def test_the_headline_counts_places():
    text = equal_cost.headline(benchmark(problem(), problem(lower=True, name="series")))
    assert text.startswith("In 2 of 6 places (a problem under a budget) a contender beats the best control: ")
    assert "AUSAM-0.25 on the digits at 25 % and AUSAM-0.5 on the series at 50 %" in text
    assert "In 2 the best control beats every contender; in the others no difference is shown." in text
    assert "unfinished" not in text


def test_every_form_has_every_figure():
    found = benchmark()
    lines = list(csv.DictReader(io.StringIO(equal_cost.csv_text(found))))
    assert [line["name"] for line in lines] == list(FIGURES)
    assert [line["verdict"] for line in lines if line["control"] == "False"] == [
        "contender better",
        "no difference shown",
        "control better",
        "no difference shown",
    ]
    markdown, tex, page = equal_cost.markdown(found), equal_cost.latex(found), equal_cost.render(found)
    for name, (_, control, scores) in FIGURES.items():
        mean = f"{sum(scores) / 5:.4f}"
        assert f"{name.upper()}{' (c)' if control else ''} | {mean}" in markdown
        assert f"{name.upper()}{' (c)' if control else ''} & {mean}" in tex
        assert f'<td class="left">{name.upper()}{" (c)" if control else ""}</td><td>{mean}' in page
    assert tex.isascii()
    assert tex.count("{") == tex.count("}")
    assert tex.count(r"\begin{table*}") == tex.count(r"\end{table*}") == 2
    for line in re.findall(r"^[^%].* & .*\\\\", tex, re.MULTILINE):
        assert not re.search(r"(?<!\\)%", line)
    assert page.count('<figure class="chart">') == 1
    assert "Tuning: rho on a validation part" in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "").split("<script>")[0]


def test_the_record_survives_its_file(tmp_path):
    found = benchmark(problem(), problem(FIGURES | {"saf": (0.25, False, [])}, name="other"))
    records.write(tmp_path / "results.json", found)
    assert records.read_finished(tmp_path / "results.json", EqualCost) == found


def test_a_row_that_misses_its_budget_is_named():
    found = problem()
    dear = replace(found.entries[3], cost=0.29)
    text = equal_cost.text(benchmark(replace(found, entries=(*found.entries[:3], dear, *found.entries[4:]))))
    assert "More than 10 % off their budget: SAF on the digits (29.0 % of SAM's samples)." in text
    assert "off their budget" not in equal_cost.text(benchmark())


def test_two_parts_of_a_benchmark_are_joined_and_judged_again():
    def part(kept, **changes):
        return benchmark(problem({k: v if kept(k) else (*v[:2], []) for k, v in FIGURES.items()}), **changes)

    first, second = part(lambda k: "sam" in k, missing=10), part(lambda k: k != "ausam-0.25", missing=5)
    whole = budgets.join_parts(first, second)
    assert whole.problems == (problem(),)
    assert whole.missing == 0
    assert budgets.join_parts(second, first).problems == whole.problems
    more = benchmark(*second.problems, problem(name="series"), runs=80)
    assert [p.name for p in budgets.join_parts(first, more).problems] == [p.name for p in more.problems]
    assert budgets.join_parts(first, more).problems[0] == whole.problems[0]
    budget, control, scores = FIGURES["gsam"]
    other = benchmark(problem(FIGURES | {"gsam": (budget, control, [*scores[:4], 1.0])}))
    with pytest.raises(
        ValueError, match=r"GSAM on the digits, seed 4: the score is 87\.4 .* 1\.0 in the other\. Run both"
    ):
        budgets.join_parts(benchmark(problem()), other)
    with pytest.raises(ValueError, match="Run both with the same recipe"):
        budgets.join_parts(first, benchmark(problem(name="series")))


def test_rows_that_lack_a_seed_are_left_out():
    budget, control, scores = FIGURES["sam+random"]
    found = budgets.without_incomplete(
        benchmark(problem(FIGURES | {"sam+random": (budget, control, scores[:4])}), missing=1)
    )
    assert found.problems == (problem(FIGURES | {"sam+random": (budget, control, [])}),)
    assert found.missing == 5
