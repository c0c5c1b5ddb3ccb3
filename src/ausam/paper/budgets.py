"""Who wins at equal cost: every contender against the best control of its budget.

A control chooses samples without any score: a random subset, shorter training, smaller batches, plain SGD. The best
control of a budget has the best mean score over the contenders' seeds. Chance favours a control chosen this way, and
never a contender, so the comparison is conservative. Differences are per seed, and Holm's correction covers all
contenders of a problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ausam.lab.records.results import BudgetProblem, Difference, Entry, EqualCost
from ausam.lab.report.statistics import holm, paired
from ausam.lab.report.verdict import Verdict, verdict

VERDICTS = {
    Verdict.BETTER: "contender better",
    Verdict.WORSE: "control better",
    Verdict.LEVEL: "no difference shown",
    Verdict.ONE_SEED: "one seed decides nothing",
    Verdict.UNFINISHED: "unfinished",
}


@dataclass(frozen=True)
class Winner:
    """One problem under one budget: the best contender and control, and the verdict on the contender."""

    budget: float
    contender: Entry | None
    control: Entry | None
    verdict: Verdict


def compare_entries(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries of a problem, each contender with its difference from the best control of its budget."""
    every = list(entries)
    rivals = {budget: best(e for e in every if e.budget == budget and e.control) for budget in budgets(every)}
    asked = [i for i, e in enumerate(every) if not e.control and e.row is not None and rivals[e.budget] is not None]
    for i, difference in zip(asked, holm([_difference(every[i], rivals[every[i].budget]) for i in asked]), strict=True):
        every[i] = replace(every[i], against=difference)
    return tuple(every)


def _difference(entry: Entry, rival: Entry | None) -> Difference | None:
    return None if entry.row is None or rival is None or rival.row is None else paired(entry.row, rival.row)


def budgets(entries: Iterable[Entry]) -> list[float]:
    """The budgets, ascending."""
    return sorted({entry.budget for entry in entries})


def best(entries: Iterable[Entry]) -> Entry | None:
    """The entry with the best mean score among those with the most runs; None if no run has ended."""
    known = [(entry.row.n, entry.row.merit, entry) for entry in entries if entry.row is not None]
    return max(known, key=lambda ranked: ranked[:2])[2] if known else None


def winners(problem: BudgetProblem) -> list[Winner]:
    """The verdict of each budget of a problem."""
    return [_winner(problem, budget) for budget in budgets(problem.entries)]


def _winner(problem: BudgetProblem, budget: float) -> Winner:
    under = [entry for entry in problem.entries if entry.budget == budget]
    contender, control = (best(entry for entry in under if entry.control is kind) for kind in (False, True))
    if contender is None or control is None or any(_missing(entry, problem.seeds) for entry in under):
        return Winner(budget, contender, control, Verdict.UNFINISHED)
    return Winner(budget, contender, control, entry_verdict(contender))


def _missing(entry: Entry, seeds: Sequence[int]) -> bool:
    return entry.row is None or entry.row.n < len(seeds)


def entry_verdict(contender: Entry) -> Verdict:
    """What its difference from the best control says."""
    lower = contender.row is not None and contender.row.lower_is_better
    return verdict(contender.against, lower_is_better=lower)


def join_parts(a: EqualCost, b: EqualCost) -> EqualCost:
    """One benchmark from two parts of it, run in different folders; rows that both have must agree.

    A row that both have comes from the part with more seeds; title, tuning and command are those of ``b``, whose recipe
    may have more problems.
    """
    older = {problem.name: problem for problem in a.problems}
    both = [(older[q.name], q) for q in b.problems if q.name in older]
    if len(both) < len(older) or any(_shape(p) != _shape(q) for p, q in both):
        raise ValueError("The two benchmarks have different problems or rows. Run both with the same recipe.")
    return _with_problems(b, [_join_problem(older[q.name], q) if q.name in older else q for q in b.problems])


def without_incomplete(benchmark: EqualCost) -> EqualCost:
    """The benchmark without the rows that lack a seed."""
    problems = []
    for problem in benchmark.problems:
        entries = [replace(e, row=None, cost=None) if _missing(e, problem.seeds) else e for e in problem.entries]
        problems.append(replace(problem, entries=compare_entries(replace(e, against=None) for e in entries)))
    return _with_problems(benchmark, problems)


def _with_problems(benchmark: EqualCost, problems: Sequence[BudgetProblem]) -> EqualCost:
    done = sum(entry.row.n for problem in problems for entry in problem.entries if entry.row is not None)
    return replace(benchmark, missing=benchmark.runs - done, problems=tuple(problems))


def _shape(problem: BudgetProblem) -> tuple[object, ...]:
    return problem.name, problem.seeds, [(entry.name, entry.budget, entry.control) for entry in problem.entries]


def _join_problem(p: BudgetProblem, q: BudgetProblem) -> BudgetProblem:
    entries = []
    for mine, other in zip(p.entries, q.entries, strict=True):
        if mine.row is None or other.row is None:
            entries.append(other if mine.row is None else mine)
            continue
        theirs = dict(zip(other.row.seeds, other.row.scores, strict=True))
        for seed, score in zip(mine.row.seeds, mine.row.scores, strict=True):
            if theirs.get(seed, score) != score:
                raise ValueError(
                    f"{mine.label} on {p.title}, seed {seed}: the score is {score} in one part and {theirs[seed]} in "
                    "the other. Run both parts with the same code and settings."
                )
        entries.append(mine if mine.row.n > other.row.n else other)
    return replace(q, entries=compare_entries(entries))
