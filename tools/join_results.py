"""Add rows that ran later to the results of the benchmark at equal cost, whose runs may be gone.

    python tools/join_results.py docs/results/equal-cost.json NEW/results.json

NEW is the folder in which ``ausam reproduce equal-cost --only ...`` ran the rows that are new. The recipe decides which
problems and rows there are. A row without all of its runs in NEW is taken from the first file, which is then replaced.
Costs and scores stay as they were measured; differences, corrections and counts are computed again.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from ausam_lab.paper.budgets import compare_entries
from ausam_lab.paper.records.equal_cost import BudgetEntry, BudgetProblem, EqualCost
from ausam_lab.records import store


def join(old: EqualCost, new: EqualCost) -> EqualCost:
    """The new results, with the old ones where a row has not run again."""
    before = {problem.name: problem for problem in old.problems}
    problems = tuple(_joined(before.get(problem.name), problem) for problem in new.problems)
    rows = [(p, e.row) for p in problems for e in {e.name: e for e in p.entries}.values()]
    runs = sum(len(problem.seeds) for problem, _ in rows)
    done = sum(row.n for _, row in rows if row is not None)
    return replace(new, command=old.command, problems=problems, runs=runs, missing=runs - done)


def _joined(old: BudgetProblem | None, new: BudgetProblem) -> BudgetProblem:
    if old is None:
        return new
    if old.seeds != new.seeds:
        raise ValueError(f"{new.name} has {len(old.seeds)} seeds here and {len(new.seeds)} there. Run it again.")
    before = {entry.name: entry for entry in old.entries if entry.row is not None}
    return replace(new, entries=compare_entries(_later(before.get(e.name), e, len(new.seeds)) for e in new.entries))


def _later(old: BudgetEntry | None, new: BudgetEntry, seeds: int) -> BudgetEntry:
    if old is None or (new.row is not None and new.row.n == seeds):
        return new
    return replace(new, row=old.row, cost=old.cost)


def main() -> None:
    """Replace the first file."""
    path, later = map(Path, sys.argv[1:])
    joined = join(*(store.read_finished(p, EqualCost) for p in (path, later)))
    store.write(path, joined)


if __name__ == "__main__":
    main()
