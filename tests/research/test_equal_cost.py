"""The benchmark at equal cost: its recipe, and its statistics on figures made by hand."""

import tomllib
from dataclasses import replace

import pytest
from research.equal_cost import benchmark
from research.equal_cost.benchmark import Entry, Problem
from scipy import stats

# name: (budget, control, scores of five seeds, twin, sgd)
AUSAM, RANDOM = "SAM + AUSampling(alpha=0.25)", "SAM + Random(alpha=0.25)"
FIGURES = {
    "sgd@0.5": (0.25, True, [80.0, 81.0, 79.0, 80.5, 79.5]),
    RANDOM: (0.25, True, [82.0, 83.0, 81.0, 82.5, 81.5]),
    AUSAM: (
        0.25,
        False,
        [85.1, 86.0, 84.2, 85.3, 84.4],
        RANDOM,
        "sgd@0.5",
    ),
    "saf": (0.25, False, [82.3, 82.7, 81.2, 82.6, 81.2], "", "sgd@0.5"),
    "sgd": (0.5, True, [86.0, 87.0, 85.0, 86.5, 85.5]),
    "sam+random": (0.5, True, [85.0, 86.0, 84.0, 85.5, 84.5]),
    "ausam-0.5": (0.5, False, [84.1, 85.2, 83.0, 84.4, 83.6], "sam+random", "sgd"),
    "sam": (1.0, True, [88.0, 89.0, 87.0, 88.5, 87.5]),
}


def problem(figures=FIGURES, **changes):
    entries = [
        Entry(name, name.upper(), budget, control, *beside, cost=budget, scores=scores)
        for name, (budget, control, scores, *beside) in figures.items()
    ]
    return replace(Problem("digits", "the digits", "", "", AUSAM, 0.0, 5, entries), **changes)


def p_of(name, rival):
    return stats.ttest_rel(FIGURES[name][2], FIGURES[rival][2]).pvalue


def test_the_recipe_is_legal_throughout():
    problems = benchmark.planned(tomllib.loads((benchmark.FOLDER / "recipe.toml").read_text()))
    for one in problems:
        assert len({e.name for e in one.entries}) == len(one.entries), "a method has one cost, so one budget"
        for entry in one.entries:
            assert entry.control == (not entry.sgd), "every contender is compared with SGD"
            beside = [one.entry(name) for name in (entry.twin, entry.sgd) if name]
            assert all(other is not None and other.budget == entry.budget for other in beside)
        assert one.entry(one.primary).twin
        assert one.entry("sam"), "headroom needs it"


def test_contenders_are_compared_with_their_baseline_and_with_sgd_corrected_within_the_budget():
    found = benchmark.contrasts(problem())
    ausam, saf = found[AUSAM], found["saf"]
    assert ausam["twin"].mean == pytest.approx(3.0)
    assert ausam["twin"].p == pytest.approx(p_of(AUSAM, RANDOM))  # the only one of its budget
    both = sorted([p_of(AUSAM, "sgd@0.5"), p_of("saf", "sgd@0.5")])
    assert sorted([ausam["sgd"].p, saf["sgd"].p]) == pytest.approx([2 * both[0], max(2 * both[0], both[1])])
    assert saf["twin"] is None
    assert found["ausam-0.5"]["sgd"].p == pytest.approx(p_of("ausam-0.5", "sgd"))  # another budget, another family
    assert set(found) == {AUSAM, "saf", "ausam-0.5"}


CLOSE = FIGURES | {AUSAM: (0.25, False, [82.1, 82.9, 81.1, 82.4, 81.5], RANDOM, "sgd@0.5")}
UNFINISHED = FIGURES | {RANDOM: (0.25, True, [])}


@pytest.mark.parametrize(
    ("figures", "changes", "expected"),
    [
        (FIGURES, {}, "better"),
        (FIGURES, {"lower_is_better": True}, "worse"),
        (FIGURES, {"primary": "ausam-0.5"}, "worse"),
        (FIGURES, {"primary": "saf"}, "unfinished"),  # it has no baseline
        (UNFINISHED, {}, "unfinished"),
        (CLOSE, {}, "no difference shown"),
        (CLOSE, {"margin": 0.05}, "no difference shown"),
        (CLOSE, {"margin": 0.5}, "equivalent"),
    ],
)
def test_verdicts(figures, changes, expected):
    assert benchmark.verdict(problem(figures, **changes)) == expected
