"""The tables of the paper: every cell an ordinary run in a folder, and the folder is all the state there is."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ausam.lab import compare, events, export, files, tables
from ausam.lab.config import Config
from ausam.lab.data import DownloadError
from ausam.lab.headline import headline
from ausam.lab.locks import held
from ausam.lab.recipe import Block, Cell, Recipe, base
from ausam.lab.train import Row, saved_settings, train

log = logging.getLogger("ausam")

# Where a run is computed, not what it is: a cell may be begun on one machine and go on on another.
HERE = ("data_dir", "workers", "threads", "device")

OnEpoch = Callable[[str, Row], None]


def reproduce(
    recipe: Recipe,
    cells: list[Cell],
    seeds: list[int],
    out: Path,
    command: str,
    on_epoch: OnEpoch,
    say: Callable[[str], None],
    tensorboard: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """Run what is missing of these cells in ``out``, and write the table after each; returns it and what failed.

    Several processes may work on one folder: a cell that another one holds is passed over and looked at again at the
    end. A cell that fails is reported and does not stop the others.
    """
    _claim(recipe, out)
    summary = write(recipe, out, seeds, command)
    failed: list[str] = []
    passed: list[Cell] = []
    no_data: set[str] = set()
    for again, todo in ((False, cells), (True, passed)):
        for cell in todo:
            if cell.config.data in no_data:
                failed.append(cell.id)
                continue
            try:
                outcome = _attempt(cell, out, on_epoch, tensorboard)
            except Exception as error:  # whatever it is, the other cells can be computed
                known = isinstance(error, ValueError | DownloadError)
                log.error("%s failed: %s", cell.id, error, exc_info=None if known else error)
                failed.append(cell.id)
                if isinstance(error, DownloadError):
                    no_data.add(cell.config.data)
                continue
            if outcome is None and not again:
                passed.append(cell)
            elif outcome is None:
                say(f"{cell.id}: another process works on it")
            elif outcome:
                say(f"{cell.id}: {outcome}")
                summary = write(recipe, out, seeds, command)
    if passed:
        summary = write(recipe, out, seeds, command)
    return summary, failed


def _attempt(cell: Cell, out: Path, on_epoch: OnEpoch, tensorboard: bool) -> str | None:
    """Run a cell to its end: what came out; empty if it was done before; None if another process holds it."""
    folder = cell.folder(out)
    with held(folder.with_name(folder.name + ".lock")) as mine:
        if not mine:
            return None
        rows = _rows(folder, cell.config)
        if tensorboard:
            inside = folder.relative_to(out / cell.block / "runs")
            rows = events.logged(rows, folder, out / "tensorboard" / cell.block / inside)
        last: Row | None = None
        for last in rows:
            on_epoch(cell.id, last)
    if last is None:
        return ""
    return f"accuracy {last['test_accuracy']:.2f} %, {last['seconds']:.1f} s of training"


def _rows(folder: Path, config: Config) -> Iterator[Row]:
    """The epochs that are left. A run of another place goes on here; any other difference ``train`` refuses."""
    theirs, mine = saved_settings(folder), asdict(config)
    if theirs is not None and theirs | {k: mine[k] for k in HERE} == mine:
        if (folder / "result.json").exists():
            return iter(())
        files.write_json(folder / "config.json", mine)
    if config.threads:
        torch.set_num_threads(config.threads)
    return train(config, folder, resume=True)


def _claim(recipe: Recipe, out: Path) -> None:
    """Refuse a folder that holds something else."""
    found = files.read_json(out / "results.json")
    if found is None:
        return
    there = (found.get("table"), found.get("scale"))
    if there != (recipe.table, recipe.scale):
        what = f"{there[0]} at scale {there[1]}" if there[0] else "other results"
        raise ValueError(f"{out} holds {what}. Choose another --out.")


def write(recipe: Recipe, out: Path, seeds: list[int], command: str) -> dict[str, Any]:
    """Write the table and the pages from the runs that lie in ``out``; returns what results.json holds."""
    # Read and written in one go: else a process that read early and writes late would hide the other's last run.
    with held(out / ".lock", wait=True):
        return _write(recipe, out, seeds, command)


def _write(recipe: Recipe, out: Path, seeds: list[int], command: str) -> dict[str, Any]:
    done = {int(p.parent.name.removeprefix("seed-")) for p in out.glob("*/runs/*/seed-*/result.json")}
    seeds = sorted(done.union(seeds))
    blocks, runs = [], []
    for block in recipe.blocks:
        config = base(block)
        found = compare.collect(block.names, seeds, config, out / block.name, command, f"{recipe.table}: {block.title}")
        compare.write(found, out / block.name)
        runs += [{**run, "block": block.name} for run in found["runs"]]
        blocks.append(_summary(block, config, found))
    expected = len(seeds) * sum(len(block.names) for block in recipe.blocks)
    summary = {
        "version": 1,
        "table": recipe.table,
        "scale": recipe.scale,
        "title": recipe.title + (" (small scale)" if recipe.scale == "small" else ""),
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seeds": seeds,
        "runs": expected,
        "missing": expected - len(runs),
        "notes": recipe.notes,
        "blocks": blocks,
    }
    files.write_json(out / "results.json", summary)
    files.write(out / "results.csv", export.csv_text(runs))
    for name, form in tables.FORMS.items():
        files.write(out / name, form(summary))
    return summary


def _summary(block: Block, config: Config, found: dict[str, Any]) -> dict[str, Any]:
    ours = {row["name"]: row for row in found["rows"]}
    size = f", {config.train_size:,} images" if config.train_size else ""
    noise = f", {100 * config.label_noise:g} % wrong labels" if config.label_noise else ""
    return {
        "name": block.name,
        "group": block.group,
        "column": block.column,
        "title": block.title,
        "about": f"{config.model} on {config.data}{size}{noise}, {config.epochs} epochs",
        "headline": headline(found),
        "rows": [
            {
                "name": row.name,
                "label": row.label,
                "note": row.note,
                "in_paper": row.in_paper,
                "paper": {"accuracy": row.accuracy, "std": row.std, "speed": row.speed},
                "ours": ours.get(row.name),
            }
            for row in block.rows
        ],
    }
