"""The tables of the paper: every cell an ordinary run in a folder, and the folder is all the state there is."""

from __future__ import annotations

import datetime
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch

from ausam.lab.config import HERE, Config
from ausam.lab.experiments import compare
from ausam.lab.experiments.recipe import Block, Cell, Recipe, base
from ausam.lab.io import files
from ausam.lab.io.locks import held
from ausam.lab.problems.download import DownloadError
from ausam.lab.registry.pairs import label, with_canonical
from ausam.lab.report import csv, records, tables
from ausam.lab.report.records import Comparison, Epoch, PaperTable, Published, TableCell, TableColumn
from ausam.lab.report.summary import headline
from ausam.lab.training.failures import explained
from ausam.lab.training.folder import finished, saved_settings
from ausam.lab.training.loop import train
from ausam.lab.training.tensorboard import logged

log = logging.getLogger("ausam")

OnEpoch = Callable[[str, Epoch], None]


class Failed(NamedTuple):
    """What is said of a cell that failed, and whether its data could not be had."""

    text: str
    no_data: bool


Outcome = str | Failed | None
Launch = Callable[[Iterable[Cell], Path, OnEpoch, bool], Iterator[tuple[Cell, Outcome]]]


def reproduce(
    recipe: Recipe,
    cells: list[Cell],
    seeds: list[int],
    out: Path,
    command: str,
    on_epoch: OnEpoch,
    say: Callable[[str], None],
    tensorboard: bool = False,
    launch: Launch | None = None,
) -> tuple[PaperTable, list[str]]:
    """Run what is missing of these cells in ``out``, and write the table after each; returns it and what failed.

    Several processes may work on one folder: a cell that another one holds is passed over and looked at again at the
    end, as is one whose full-precision run another process holds. A cell that fails is reported and does not stop the
    others, except those that start from it.
    """
    _claim(recipe, out)
    table = write(recipe, out, seeds, command)
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
        for cell, outcome in (launch or in_turn)(possible(todo), out, on_epoch, tensorboard):
            if isinstance(outcome, Failed):
                log.error("%s failed: %s", cell.id, outcome.text)
                failed.append(cell.id)
                if outcome.no_data:
                    no_data.add(cell.config.data)
            elif outcome is None and not again:
                passed.append(cell)
            elif outcome is None:
                say(f"{cell.id}: another process works on it{', or on what it starts from' if cell.first else ''}")
            elif outcome:
                say(f"{cell.id}: {outcome}")
                table = write(recipe, out, seeds, command)
    if passed:
        table = write(recipe, out, seeds, command)
    return table, failed


def in_turn(cells: Iterable[Cell], out: Path, on_epoch: OnEpoch, tensorboard: bool) -> Iterator[tuple[Cell, Outcome]]:
    """Run the cells here, one after the other."""
    for cell in cells:
        yield cell, attempt(cell, out, on_epoch, tensorboard)


def attempt(cell: Cell, out: Path, on_epoch: OnEpoch, tensorboard: bool) -> Outcome:
    """Run a cell to its end as ``_run`` does; a Failed for what concerns this cell alone. A full disk concerns all."""
    try:
        return _run(cell, out, on_epoch, tensorboard)
    except files.WriteError:
        raise
    except Exception as error:  # noqa: BLE001  (whatever it is, the other cells can be computed)
        known = explained(error)
        text = known.text if known else f"{error}\n{''.join(traceback.format_exception(error))}"
        return Failed(text, isinstance(error, DownloadError))


def _run(cell: Cell, out: Path, on_epoch: OnEpoch, tensorboard: bool) -> str | None:
    """Run a cell to its end: what came out; empty if it was done before; None if it is another process's turn."""
    folder = cell.folder(out)
    if cell.first is not None and not _done(folder) and not _done(cell.first.folder(out)):
        return None
    with held(folder.with_name(folder.name + ".lock")) as mine:
        if not mine:
            return None
        epochs = _epochs(folder, cell.placed(out))
        if tensorboard:
            inside = folder.relative_to(out / cell.block / "runs")
            epochs = logged(epochs, folder, out / "tensorboard" / cell.block / inside)
        last: Epoch | None = None
        for last in epochs:
            on_epoch(cell.id, last)
    if last is None:
        return ""
    return f"{last.test}, {last.seconds:.1f} s of training"


def _epochs(folder: Path, config: Config) -> Iterator[Epoch]:
    """The epochs that are left. A run of another place goes on here; any other difference ``train`` refuses."""
    theirs, mine = saved_settings(folder), with_canonical(asdict(config))
    # Where weights lie is not what a run is, but whether it started from any is.
    same = theirs is not None and bool(theirs["init"]) == bool(config.init)
    if theirs is not None and same and theirs | {k: mine[k] for k in HERE} == mine:
        if _done(folder):
            return iter(())
        files.write_json(folder / "config.json", mine)
    if config.threads:
        torch.set_num_threads(config.threads)
    return train(config, folder, resume=True)


def _done(folder: Path) -> bool:
    return finished(folder) is not None


def _claim(recipe: Recipe, out: Path) -> None:
    """Refuse a folder that holds something else."""
    path = out / "results.json"
    try:
        found = records.read(path, PaperTable)
    except ValueError as error:
        if not any((out / block.name / "runs").is_dir() for block in recipe.blocks):
            raise ValueError(f"{out} holds other results. Choose another --out.") from None
        log.warning("%s. It is written again from the runs.", str(error).partition(". Remove it")[0])
        return
    if found is None:
        return
    if (found.table, found.scale) != (recipe.table, recipe.scale):
        raise ValueError(f"{out} holds {found.table} at scale {found.scale}. Choose another --out.")


def write(recipe: Recipe, out: Path, seeds: list[int], command: str) -> PaperTable:
    """Write the table and the pages from the runs that lie in ``out``; returns what results.json holds."""
    # Read and written in one go: else a process that read early and writes late would hide the other's last run.
    with held(out / ".lock", wait=True):
        return _write(recipe, out, seeds, command)


def _write(recipe: Recipe, out: Path, seeds: list[int], command: str) -> PaperTable:
    done = {int(p.parent.name.removeprefix("seed-")) for p in out.glob("*/runs/*/seed-*/result.json")}
    seeds = sorted(done.union(seeds))
    columns, runs = [], []
    for block in recipe.blocks:
        config = base(block)
        found = compare.collect(block.names, seeds, config, out / block.name, command, f"{recipe.table}: {block.title}")
        compare.write(found, out / block.name)
        runs += [(block.name, named) for named in found.runs]
        columns.append(_column(block, config, found))
    expected = len(seeds) * sum(len(block.names) for block in recipe.blocks)
    table = PaperTable(
        table=recipe.table,
        scale=recipe.scale,
        title=recipe.title + (" (small scale)" if recipe.scale == "small" else ""),
        command=command,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seeds=tuple(seeds),
        runs=expected,
        missing=expected - len(runs),
        notes=recipe.notes,
        metric=recipe.metric,
        unit="%",
        columns=tuple(columns),
    )
    records.write(out / "results.json", table)
    files.write(out / "results.csv", csv.csv_text(runs))
    for name, form in tables.FORMS.items():
        files.write(out / name, form(table))
    return table


def _column(block: Block, config: Config, found: Comparison) -> TableColumn:
    ours = {row.name: row for row in found.rows}
    size = f", {config.train_size:,} images" if config.train_size else ""
    noise = f", {100 * config.label_noise:g} % wrong labels" if config.label_noise else ""
    bits = f" with {config.quantize}-bit weights and activations" if config.quantize else ""
    cells = [
        TableCell(
            name=row.name,
            label=label(row.name, config.base),
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
        about=f"{config.model}{bits} on {config.data}{size}{noise}, {config.epochs} epochs",
        headline=headline(found),
        cells=tuple(cells),
    )
