"""What a choice of samples gains at equal cost: contenders against their random twins and against SGD.

A contender is compared with its *random twin* (the same method on as many samples, drawn at random) and with the SGD of
its budget. The recipe names both before anything runs, so neither is picked by the scores it is compared on.
Differences are per seed. The recipe also names one primary contrast per problem: a contender against its twin, which
needs no correction. Of all other contrasts, those of one budget are corrected together (Holm).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ausam_lab.paper.records.equal_cost import BudgetEntry, BudgetProblem
from ausam_lab.records.comparison import Difference
from ausam_lab.report.statistics import holm, paired, paired_values
from ausam_lab.report.verdict import Verdict, verdict

VERDICTS = {
    Verdict.BETTER: "better than chance",
    Verdict.WORSE: "worse than chance",
    Verdict.LEVEL: "level",
    Verdict.UNCLEAR: "no difference shown",
    Verdict.ONE_SEED: "one seed decides nothing",
    Verdict.UNFINISHED: "unfinished",
}


def compare_entries(entries: Iterable[BudgetEntry]) -> tuple[BudgetEntry, ...]:
    """The entries of a problem, each contender with its differences from its twin and from SGD."""
    every = list(entries)
    by_name = {entry.name: entry for entry in every}
    for budget in budgets(every):
        asked = [i for i, entry in enumerate(every) if entry.budget == budget and not entry.control]
        twins = holm([difference(every[i], by_name.get(every[i].twin)) for i in asked])
        sgds = holm([difference(every[i], by_name.get(every[i].sgd)) for i in asked])
        for i, from_twin, from_sgd in zip(asked, twins, sgds, strict=True):
            every[i] = replace(every[i], from_twin=from_twin, from_sgd=from_sgd)
    return tuple(every)


def difference(entry: BudgetEntry | None, rival: BudgetEntry | None) -> Difference | None:
    """Of the scores, with uncorrected p; None while one of the two has no run."""
    rows = [None if e is None else e.row for e in (entry, rival)]
    return None if rows[0] is None or rows[1] is None else paired(rows[0], rows[1])


def nll_difference(entry: BudgetEntry | None, rival: BudgetEntry | None) -> Difference | None:
    """Of the likelihoods; None where one of the two is unknown."""
    mine, theirs = ({} if e is None or e.row is None else e.row.nll_of_seed for e in (entry, rival))
    return paired_values(mine, theirs)


def primary_entries(problem: BudgetProblem) -> tuple[BudgetEntry | None, BudgetEntry | None]:
    """The two sides of the primary contrast: the contender and its twin."""
    by_name: Mapping[str, BudgetEntry] = {entry.name: entry for entry in problem.entries}
    contender = by_name.get(problem.primary)
    return contender, None if contender is None else by_name.get(contender.twin)


def primary_verdict(problem: BudgetProblem) -> Verdict:
    """What the primary contrast says; unfinished until both sides have all seeds."""
    sides = primary_entries(problem)
    if any(e is None or e.row is None or e.row.n < len(problem.seeds) for e in sides):
        return Verdict.UNFINISHED
    lower = sides[0] is not None and sides[0].row is not None and sides[0].row.lower_is_better
    return verdict(difference(*sides), lower_is_better=lower, margin=problem.margin)


def headroom(problem: BudgetProblem) -> Difference | None:
    """SAM at its full cost less the primary contrast's random twin: what a choice of samples can gain at most."""
    sam = next((entry for entry in problem.entries if entry.name == "sam"), None)
    return difference(sam, primary_entries(problem)[1])


def budgets(entries: Iterable[BudgetEntry]) -> list[float]:
    """The budgets, ascending."""
    return sorted({entry.budget for entry in entries})
