"""Fill the tables of the documentation from docs/results: ``make figures``.

A table stands between ``<!-- table NAME -->`` and ``<!-- /table -->``, where NAME is FILE/PROBLEM of a benchmark at
equal cost, or FILE/primary for its primary contrasts. FILE.json is the results.json of the benchmark.
NAME.jsonl is what benchmarks/NAME.py has measured, which also makes the table.
"""

from __future__ import annotations

import functools
import re
import runpy
import sys
from pathlib import Path

from ausam_lab.paper import equal_cost
from ausam_lab.paper.records.equal_cost import BudgetProblem, EqualCost
from ausam_lab.records import files, store
from ausam_lab.report.table import Table, to_markdown

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))  # a benchmark imports its neighbours
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


def main() -> None:
    """Write the pages."""
    for page in PAGES:
        if (new := filled(old := page.read_text())) != old:
            files.write(page, new)


if __name__ == "__main__":
    main()
