"""Fill the tables of the documentation from docs/results: ``make figures``.

A table stands between ``<!-- table NAME -->`` and ``<!-- /table -->``, where NAME is FILE/PROBLEM of a benchmark at
equal cost, FILE/primary for its primary contrasts, or a comparison. FILE.json is the results.json of the experiment.
NAME.jsonl is what benchmarks/NAME.py has measured, which also makes the table.
"""

from __future__ import annotations

import functools
import re
import runpy
from pathlib import Path

from ausam.lab.records import files, store
from ausam.lab.records.comparison import Comparison
from ausam.lab.report.summary import heading
from ausam.lab.report.table import Table, to_markdown
from ausam.lab.report.text import show
from ausam.paper import equal_cost
from ausam.paper.records.equal_cost import BudgetProblem, EqualCost

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PAGES = (*sorted((ROOT / "docs").glob("*.md")), *sorted(RESULTS.glob("*.md")))
BLOCK = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- /table -->)", re.DOTALL)


@functools.cache
def benchmark(name: str) -> EqualCost:
    """The results of a benchmark at equal cost."""
    return store.read_finished(RESULTS / f"{name}.json", EqualCost)


def filled(page: str) -> str:
    """The page with every table as the results have it."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{table(match[2])}\n\n{match[3]}", page)


def table(name: str) -> str:
    """A table in Markdown."""
    if (measured := RESULTS / f"{name}.jsonl").exists():
        script = ROOT / "benchmarks" / f"{name.replace('-', '_')}.py"
        return str(runpy.run_path(str(script))["table"](measured))
    source, _, part = name.partition("/")
    if not part:
        return of_comparison(store.read_finished(RESULTS / f"{source}.json", Comparison))
    if part == "primary":
        return to_markdown(equal_cost.primary_table(benchmark(source)))
    return of_problem(next(problem for problem in benchmark(source).problems if problem.name == part))


def of_problem(problem: BudgetProblem) -> str:
    """Everything that ran on a problem; with the accuracy on its rare classes, if there is one."""
    table = equal_cost.problem_table(problem)
    rows = [entry.row for entry in equal_cost.shown(problem)]
    tails = ["" if row is None or "tail" not in row.parts else f"{row.parts['tail']:.1f}" for row in rows]
    more = ["Tail %"] if any(tails) else []
    lines = [
        [*line.cells, *([tail] if more else [])]
        for line, row, tail in zip(table.lines, rows, tails, strict=True)
        if row is not None
    ]
    return to_markdown(Table.of([*table.head, *more], lines, left=table.left))


def of_comparison(comparison: Comparison) -> str:
    """The score and the cost of every row of a comparison."""
    rows = comparison.rows
    scores = [show(row.mean, row.decimals, row.std) for row in rows]
    head = ("Method", heading(rows[0].metric, rows[0].unit, rows[0].lower_is_better), "Samples%", "Runs")
    lines = [(row.label, score, show(row.samples_of_sam, 1), row.n) for row, score in zip(rows, scores, strict=True)]
    return to_markdown(Table.of(head, lines))


def main() -> None:
    """Write the pages."""
    for page in PAGES:
        if (new := filled(old := page.read_text())) != old:
            files.write(page, new)


if __name__ == "__main__":
    main()
