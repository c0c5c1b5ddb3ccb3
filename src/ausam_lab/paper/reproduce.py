"""The table of a recipe: every cell is an ordinary run in a folder, and the folder is the only state."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ausam_lab.config import Config
from ausam_lab.data.catalogue import changes
from ausam_lab.experiments import compare
from ausam_lab.experiments.cells import Cell
from ausam_lab.experiments.run_cells import Failed, Launch, OnEpoch, in_turn
from ausam_lab.paper import budgets, equal_cost, tables
from ausam_lab.paper.recipe import Block, Recipe, base
from ausam_lab.paper.recipe import read as read_recipe
from ausam_lab.paper.records.equal_cost import BudgetEntry, BudgetProblem, EqualCost
from ausam_lab.paper.records.paper_table import PaperTable, Published, TableCell, TableColumn
from ausam_lab.records import files, store
from ausam_lab.records.comparison import Comparison
from ausam_lab.records.locks import file_lock
from ausam_lab.registry.pairs import label
from ausam_lab.report.runs_csv import runs_csv
from ausam_lab.report.summary import headline
from ausam_lab.training.logs import NO_LOGS, Logs
from ausam_lab.training.run_folder import make

log = logging.getLogger("ausam")

Result = PaperTable | EqualCost

SHARE = 0.1  # largest fraction of the time spent on tables and pages while cells run


def reproduce(
    recipe: Recipe,
    cells: list[Cell],
    out: Path,
    command: str,
    on_epoch: OnEpoch,
    say: Callable[[str], None],
    logs: Logs = NO_LOGS,
    launch: Launch | None = None,
) -> tuple[Result, list[str]]:
    """Run the missing cells in ``out``, update the table from time to time, and return it with the failures.

    Several processes may work on one folder. A cell that another process holds is skipped and tried again at the end,
    and so is a cell whose full-precision run another process holds. A failed cell is reported and does not stop the
    others, except those that start from it.
    """
    _claim(recipe, out)
    make(out)
    write_now_and_then = _Occasional(lambda: write(recipe, out, command))
    failed: list[str] = []
    passed: list[Cell] = []
    no_data: set[str] = set()

    def possible(cells: list[Cell]) -> Iterator[Cell]:
        for cell in cells:
            if cell.config.data in no_data or (cell.first is not None and cell.first.id in failed):
                failed.append(cell.id)
            else:
                yield cell

    for again, todo in ((False, cells), (True, passed)):
        for cell, outcome in (launch or in_turn)(possible(todo), out, on_epoch, logs):
            if isinstance(outcome, Failed):
                log.error("%s failed: %s", cell.id, outcome.text)
                failed.append(cell.id)
                if outcome.no_data:
                    no_data.add(cell.config.data)
            elif outcome is None and not again:
                passed.append(cell)
            elif outcome is None:
                say(f"{cell.id}: another process is working on it{' or its initial weights' if cell.first else ''}")
            elif outcome:
                say(f"{cell.id}: {outcome}")
                write_now_and_then()
    return write(recipe, out, command), failed


class _Occasional:
    """An action that runs on request, unless it would take more than its share of the time."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do
        self._next = 0.0
        self()

    def __call__(self) -> None:
        start = time.monotonic()
        if start >= self._next:
            self._do()
            self._next = time.monotonic() + (time.monotonic() - start) / SHARE


def _claim(recipe: Recipe, out: Path) -> None:
    """Refuse a folder with other contents."""
    path = out / "results.json"
    try:
        saved = store.read(path, _kind(path) or PaperTable)
    except ValueError as error:
        if not any((out / block.name / "runs").is_dir() for block in recipe.blocks):
            raise ValueError(f"{out} contains other results. Choose another --out.") from None
        log.warning("%s. It will be rewritten from the runs.", str(error).partition(". Remove it")[0])
        return
    scale = saved.scale if isinstance(saved, PaperTable) else ""
    if saved is not None and (saved.table, scale) != (recipe.table, recipe.scale):
        where = f" at scale {scale}" if scale else ""
        raise ValueError(f"{out} contains {saved.table}{where}. Choose another --out.")


def write(recipe: Recipe, out: Path, command: str) -> Result:
    """Write the table and the pages from the runs in ``out``; return the record in results.json."""
    # Read and write under one lock: otherwise a process that read early and writes late would hide another's last run.
    with file_lock(out / ".lock", wait=True):
        comparisons = [(block, _comparison(recipe, block, out, command)) for block in recipe.blocks]
        result = (
            _equal_cost(recipe, comparisons, command)
            if recipe.equal_cost
            else _paper_table(recipe, comparisons, command)
        )
        store.write(out / "results.json", result)
        runs = [(block.name, named) for block, comparison in comparisons for named in comparison.runs]
        files.write(out / "results.csv", runs_csv(runs))
        for name, content in _output_files(result).items():
            files.write(out / name, content)
        return result


def rewrite(out: Path) -> Result | None:
    """Write the table in a folder again, from its runs; None if the folder holds no table."""
    path = out / "results.json"
    if (kind := _kind(path)) is None:
        return None
    old = store.read_finished(path, kind)
    if isinstance(old, EqualCost):
        recipe = read_recipe(old.table, seeds={problem.name: len(problem.seeds) for problem in old.problems})
    else:
        recipe = read_recipe(old.table, old.scale, len(old.seeds))
    return write(recipe, out, old.command)


def _kind(path: Path) -> type[PaperTable] | type[EqualCost] | None:
    """The kind of table that a file declares; None if it is no table."""
    return {PaperTable.FORMAT: PaperTable, EqualCost.FORMAT: EqualCost}.get(store.format_of(path))


def text(result: Result) -> str:
    """The result for a terminal."""
    return equal_cost.text(result) if isinstance(result, EqualCost) else tables.text(result)


def _output_files(result: Result) -> dict[str, str]:
    """The contents of the files next to results.json, by name."""
    if isinstance(result, EqualCost):
        return {name: form(result) for name, form in equal_cost.OUTPUT_FILES.items()}
    return {name: form(result) for name, form in tables.OUTPUT_FILES.items()}


def _comparison(recipe: Recipe, block: Block, out: Path, command: str) -> Comparison:
    """The results of a block; also writes its page."""
    folder = out / block.name
    done = {int(p.parent.name.removeprefix("seed-")) for p in folder.glob("runs/*/seed-*/result.json")}
    seeds = sorted(done.union(range(block.seeds)))
    comparison = compare.collect(block.names, seeds, base(block), folder, command, f"{recipe.table}: {block.title}")
    return compare.write(comparison, folder)


Comparisons = list[tuple[Block, Comparison]]


def _counted(comparisons: Comparisons) -> tuple[int, int]:
    """The number of runs in the table, and how many of them are missing."""
    expected = sum(len(comparison.seeds) * len(block.names) for block, comparison in comparisons)
    return expected, expected - sum(len(comparison.runs) for _, comparison in comparisons)


def _equal_cost(recipe: Recipe, comparisons: Comparisons, command: str) -> EqualCost:
    runs, missing = _counted(comparisons)
    return EqualCost(
        table=recipe.table,
        title=recipe.title,
        command=command,
        created=store.now(),
        runs=runs,
        missing=missing,
        tuning=recipe.tuning,
        problems=tuple(_problem(block, comparison) for block, comparison in comparisons),
    )


def _problem(block: Block, comparison: Comparison) -> BudgetProblem:
    ours = {row.name: row for row in comparison.rows}
    # SAM passes every sample forward and backward twice
    sam = 0 if comparison.data is None else 4 * comparison.data.train * comparison.config.epochs
    entries = []
    for row in block.rows:
        if row.budget is not None:
            run = ours.get(row.name)
            cost = None if run is None else (run.samples_forward + run.samples_backward) / sam
            name = row.label or label(row.name, comparison.config.base)
            entries.append(BudgetEntry(row.name, name, row.budget, row.control, run, cost, row.twin, row.sgd))
    return BudgetProblem(
        name=block.name,
        title=block.title,
        about=_about(comparison.config),
        tuning=block.tuning,
        seeds=comparison.seeds,
        entries=budgets.compare_entries(entries),
        primary=block.primary,
        margin=block.margin,
    )


def _paper_table(recipe: Recipe, comparisons: Comparisons, command: str) -> PaperTable:
    runs, missing = _counted(comparisons)
    return PaperTable(
        table=recipe.table,
        scale=recipe.scale,
        title=recipe.title + (" (small scale)" if recipe.scale == "small" else ""),
        command=command,
        created=store.now(),
        seeds=tuple(sorted({seed for _, comparison in comparisons for seed in comparison.seeds})),
        runs=runs,
        missing=missing,
        notes=recipe.notes,
        metric=recipe.metric,
        unit=next((row.unit for _, comparison in comparisons for row in comparison.rows), "%"),
        columns=tuple(_column(block, comparison) for block, comparison in comparisons),
        deviations=() if recipe.scale == "small" else recipe.deviations,
    )


def _about(config: Config) -> str:
    size = f", {config.train_size:,} images" if config.train_size else ""
    bits = f" with {config.quantize}-bit weights and activations" if config.quantize else ""
    return f"{config.model}{bits} on {config.data}{size}{changes(config)}, {config.epochs} epochs"


def _column(block: Block, comparison: Comparison) -> TableColumn:
    ours = {row.name: row for row in comparison.rows}
    cells = [
        TableCell(
            name=row.name,
            label=label(row.name, comparison.config.base),
            note=row.note,
            paper=Published(row.score, row.std, row.speed, row.parts),
            ours=ours.get(row.name),
        )
        for row in block.rows
    ]
    return TableColumn(
        name=block.name,
        group=block.group,
        heading=block.column,
        title=block.title,
        about=_about(comparison.config),
        headline=headline(comparison),
        cells=tuple(cells),
    )
