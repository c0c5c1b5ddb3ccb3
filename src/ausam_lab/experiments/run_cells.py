"""Run cells, one after the other or with a launcher. They can be resumed, and a failed one stops no other."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch

from ausam_lab.config import Config
from ausam_lab.data.sources import DownloadError
from ausam_lab.experiments.cells import Cell
from ausam_lab.records import files
from ausam_lab.records.files import file_lock
from ausam_lab.records.run import Epoch
from ausam_lab.training.failures import explain
from ausam_lab.training.loop import train
from ausam_lab.training.run_folder import finished, identity, saved_config

OnEpoch = Callable[[str, Epoch], None]


class Failed(NamedTuple):
    """The message of a failed cell, and whether its data was unavailable."""

    text: str
    no_data: bool


Outcome = str | Failed | None
Launch = Callable[[Iterable[Cell], Path, OnEpoch], Iterator[tuple[Cell, Outcome]]]


def in_turn(cells: Iterable[Cell], out: Path, on_epoch: OnEpoch) -> Iterator[tuple[Cell, Outcome]]:
    """Run the cells in this process, one after the other."""
    for cell in cells:
        yield cell, attempt(cell, out, on_epoch)


def attempt(cell: Cell, out: Path, on_epoch: OnEpoch) -> Outcome:
    """Run a cell like ``_run``. A Failed for an error that concerns this cell only. A full disk concerns all."""
    try:
        return _run(cell, out, on_epoch)
    except files.WriteError:
        raise
    except Exception as error:  # noqa: BLE001  (whatever it is, the other cells can be computed)
        known = explain(error)
        text = known.text if known else f"{error}\n{''.join(traceback.format_exception(error))}"
        return Failed(text, isinstance(error, DownloadError))


def _run(cell: Cell, out: Path, on_epoch: OnEpoch) -> str | None:
    """Run a cell to its end: its outcome. Empty if it was done before.

    None if another process holds it, or if the full-precision run that it starts from is not done.
    """
    folder = cell.folder(out)
    if cell.first is not None and not _done(folder) and not _done(cell.first.folder(out)):
        return None
    with file_lock(folder.with_name(folder.name + ".lock")) as mine:
        if not mine:
            return None
        last: Epoch | None = None
        for last in _epochs(folder, cell.placed(out)):
            on_epoch(cell.id, last)
    if last is None:
        return ""
    return f"{last.test}, {last.seconds:.1f} s of training"


def _epochs(folder: Path, config: Config) -> Iterator[Epoch]:
    """The remaining epochs. A run that was moved continues here. ``train`` raises an error for any other difference."""
    theirs = saved_config(folder)
    # The path of the initial weights is not part of a run's identity, but whether there are any is.
    if theirs is not None and bool(theirs.init) == bool(config.init) and identity(theirs) == identity(config):
        if _done(folder):
            return iter(())
        files.write_json(folder / "config.json", asdict(config))
    if config.threads:
        torch.set_num_threads(config.threads)
    return train(config, folder, resume=True)


def _done(folder: Path) -> bool:
    return finished(folder) is not None
