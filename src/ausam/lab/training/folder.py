"""The folder of a run: whose it is, whether the run is done, and its metrics."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ausam.lab.config import HERE, Config, completed, differences
from ausam.lab.io import files
from ausam.lab.report import records
from ausam.lab.report.records import Epoch, Run
from ausam.lab.training import checkpoint

log = logging.getLogger("ausam")


def is_done(out: Path, config: Config, resume: bool) -> bool:
    """Whether the run in this folder is done; a ValueError if it is another."""
    refuse_foreign(out, config, resume)
    return records.read(out / "result.json", Run) is not None


def refuse_foreign(out: Path, config: Config, resume: bool) -> None:
    """Raise a ValueError for a folder that holds another run, or this one without ``resume``."""
    mine = asdict(config)
    theirs = saved_settings(out)
    if theirs is None:
        if out.exists() and not out.is_dir():
            raise ValueError(f"{out} is a file. Choose another --out.")
        if out.exists() and any(not p.name.endswith(".tmp") for p in out.iterdir()):
            raise ValueError(f"{out} is not empty and holds no run that can be read. Choose another --out.")
    elif theirs | {k: mine[k] for k in HERE if k != "init"} != mine:
        raise ValueError(
            f"{out} holds another run: {'; '.join(differences(theirs, mine)) or 'a setting that is not known'}. "
            "Choose another --out, or give the settings of that run."
        )
    elif not resume:
        raise ValueError(f"{out} holds this run already. Go on with it by --resume, or choose another --out.")


def saved_settings(out: Path) -> dict[str, Any] | None:
    """The settings of the run in a folder, as today's: one that did not exist then had its default."""
    theirs = files.read_json(out / "config.json")
    if theirs is None and (out / "config.json").exists() and (theirs := checkpoint.settings(out)) is not None:
        log.warning("%s is damaged; the settings are taken from the last checkpoint.", out / "config.json")
    return None if theirs is None else completed(theirs)


def write_epochs(out: Path, epochs: list[Epoch]) -> None:
    """metrics.jsonl, a line per epoch, always as far as the checkpoint."""
    files.write(out / "metrics.jsonl", records.epochs_text(epochs))


def epochs(out: Path) -> list[Epoch]:
    """The epochs of the run in a folder, as far as they are written."""
    return records.read_epochs(out / "metrics.jsonl")
