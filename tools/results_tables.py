"""Fill the tables of docs/results/*.md from the results beside them: ``make figures``.

A table stands between ``<!-- table NAME -->`` and ``<!-- /table -->``, where NAME is a problem of equal-cost.json,
``winners`` for its overview, or a comparison, NAME.json. Times are left out, because the runs shared their machine with
other work.
"""

from __future__ import annotations

import re
from pathlib import Path

from ausam.lab.records import files
from ausam.lab.records import results as records
from ausam.lab.records.results import BudgetProblem, Comparison, EqualCost
from ausam.lab.report.summary import heading
from ausam.lab.report.table import Table, to_markdown
from ausam.lab.report.text import show
from ausam.lab.report.verdict import Verdict
from ausam.paper import equal_cost
from ausam.paper.budgets import VERDICTS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PAGES = (ROOT / "docs" / "results.md", *sorted(RESULTS.glob("*.md")))
BLOCK = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- /table -->)", re.DOTALL)
LEFT_OUT = ("Train s", "Time%")


def filled(page: str, benchmark: EqualCost) -> str:
    """The page with every table as the results have it."""
    problems = {problem.name: problem for problem in benchmark.problems}

    def table(match: re.Match[str]) -> str:
        name = match[2]
        if name == "winners":
            lines = winners(benchmark)
        elif name in problems:
            lines = of_problem(problems[name])
        else:
            lines = of_comparison(records.read_finished(RESULTS / f"{name}.json", Comparison))
        return f"{match[1]}\n{lines}\n\n{match[3]}"

    return BLOCK.sub(table, page)


def winners(benchmark: EqualCost) -> str:
    """Who wins where, without what is unfinished."""
    table = equal_cost.who_wins(benchmark)
    rows = [line.cells for line in table.lines if line.cells[-1] != VERDICTS[Verdict.UNFINISHED]]
    return to_markdown(Table.of(table.head, rows, left=table.left))


def of_problem(problem: BudgetProblem) -> str:
    """Everything that ran on a problem; with the accuracy on its rare classes, if there is one."""
    table = equal_cost.problem_table(problem)
    keep = [i for i, name in enumerate(table.head) if name not in LEFT_OUT]
    rows = [entry.row for entry in equal_cost.shown(problem)]
    tails = ["" if row is None or "tail" not in row.parts else f"{row.parts['tail']:.1f}" for row in rows]
    head, lines = [table.head[i] for i in keep], []
    for line, row, tail in zip(table.lines, rows, tails, strict=True):
        if row is not None:
            lines.append([line.cells[i] for i in keep] + ([tail] if any(tails) else []))
    return to_markdown(Table.of([*head, *(["Tail %"] if any(tails) else [])], lines, left=table.left))


def of_comparison(comparison: Comparison) -> str:
    """The score and the cost of every row of a comparison."""
    rows = comparison.rows
    scores = [show(row.mean, row.decimals, row.std) for row in rows]
    head = ("Method", heading(rows[0].metric, rows[0].unit, rows[0].lower_is_better), "Samples%", "Runs")
    lines = [(row.label, score, show(row.samples_of_sam, 1), row.n) for row, score in zip(rows, scores, strict=True)]
    return to_markdown(Table.of(head, lines))


def main() -> None:
    """Write the pages."""
    benchmark = records.read_finished(RESULTS / "equal-cost.json", EqualCost)
    for page in PAGES:
        files.write(page, filled(page.read_text(), benchmark))


if __name__ == "__main__":
    main()
