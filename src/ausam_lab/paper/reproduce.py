"""The table of a recipe: every cell is an ordinary run in a folder, and the folder is the only state."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ausam.common.settings import PositiveCount
from ausam_lab.experiments import compare
from ausam_lab.experiments.cells import Cell
from ausam_lab.experiments.run_cells import Failed, Launch, OnEpoch, in_turn
from ausam_lab.paper import tables
from ausam_lab.paper.recipe import Block, Recipe, base
from ausam_lab.paper.recipe import read as read_recipe
from ausam_lab.paper.tables import PaperTable
from ausam_lab.records import files, store
from ausam_lab.records.comparison import Comparison
from ausam_lab.records.files import file_lock
from ausam_lab.records.store import Record
from ausam_lab.training.run_folder import make

log = logging.getLogger("ausam")

EVERY = 60.0  # seconds between two tables while cells run


@dataclass(frozen=True)
class Reproduction(Record):
    """What a folder holds: a table at a scale. Its blocks are comparisons, with records of their own."""

    FORMAT = "table"
    VERSION = 3

    table: str
    scale: str
    seeds: PositiveCount
    command: str


def reproduce(
    recipe: Recipe,
    cells: list[Cell],
    out: Path,
    command: str,
    on_epoch: OnEpoch,
    say: Callable[[str], None],
    launch: Launch | None = None,
) -> tuple[PaperTable, list[str]]:
    """Run the missing cells in ``out``, update the table from time to time, and return it with the failures.

    Several processes may work on one folder. A cell that another process holds is skipped and tried again at the end,
    and so is a cell whose full-precision run another process holds. A failed cell is reported and does not stop the
    others, except those that start from it.
    """
    _claim(recipe, out)
    make(out)
    write(recipe, out, command)
    written = time.monotonic()
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
        for cell, outcome in (launch or in_turn)(possible(todo), out, on_epoch):
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
                if time.monotonic() - written > EVERY:
                    write(recipe, out, command)
                    written = time.monotonic()
    return write(recipe, out, command), failed


def _claim(recipe: Recipe, out: Path) -> None:
    """Raise an error for a folder with other contents."""
    path = out / "results.json"
    if files.read_json(path) is None:  # none, or a damaged one, which is written again from the runs
        return
    saved = store.read(path, Reproduction) if store.format_of(path) == Reproduction.FORMAT else None
    if saved is None or (saved.table, saved.scale) != (recipe.table, recipe.scale):
        scale = f" at scale {saved.scale}" if saved and saved.scale else ""
        raise ValueError(f"{out} contains {saved.table if saved else 'other results'}{scale}. Choose another --out.")


def write(recipe: Recipe, out: Path, command: str) -> PaperTable:
    """Write the pages and what the folder holds, from the runs in ``out``. Return the table."""
    # Read and write under one lock: otherwise a process that read early and writes late would hide another's last run.
    with file_lock(out / ".lock", wait=True):
        results = tuple(_comparison(recipe, block, out, command) for block in recipe.blocks)
        table = PaperTable(recipe, results, command)
        store.write(out / "results.json", Reproduction(recipe.table, recipe.scale, recipe.seeds, command))
        files.write(out / "report.html", tables.render(table))
        return table


def rewrite(out: Path) -> PaperTable | None:
    """Write the table in a folder again, from its runs. None if the folder holds no table."""
    path = out / "results.json"
    if store.format_of(path) != Reproduction.FORMAT:
        return None
    old = store.read_finished(path, Reproduction)
    return write(read_recipe(old.table, old.scale, old.seeds), out, old.command)


def _comparison(recipe: Recipe, block: Block, out: Path, command: str) -> Comparison:
    """The results of a block. Also writes its page."""
    folder = out / block.name
    done = {int(p.parent.name.removeprefix("seed-")) for p in folder.glob("runs/*/seed-*/result.json")}
    seeds = sorted(done.union(range(recipe.seeds)))
    comparison = compare.collect(block.names, seeds, base(block), folder, command, f"{recipe.table}: {block.title}")
    return compare.write(comparison, folder)
