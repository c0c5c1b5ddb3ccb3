"""The folder of a run: which run it holds, whether it has finished, and its epochs."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ausam_lab.config import NOT_PART_OF_IDENTITY, Config, differences
from ausam_lab.records import files, store
from ausam_lab.records.files import file_lock
from ausam_lab.records.run import Epoch, Run, epochs_of, epochs_text
from ausam_lab.records.store import typed

LOCK = ".lock"
LABELS = "labels.csv"  # a copy of the file in --labels


def identity(config: Config) -> dict[str, Any]:
    """The settings that make a run the one it is, wherever it is computed."""
    return {k: v for k, v in asdict(config).items() if k not in NOT_PART_OF_IDENTITY}


def claim(out: Path, config: Config, resume: bool, until: contextlib.ExitStack) -> Run | None:
    """Lock the folder for this run until the stack is closed. Returns the record of a run that has finished.

    Raises a ValueError for a folder that holds another run, or this one without ``resume``, or that another process is
    using.
    """
    refuse_other_run(out, config, resume)  # before locking, which would add a file to an unrelated folder
    make(out)
    with files.written(out):
        mine = until.enter_context(file_lock(out / LOCK))
    if not mine:
        raise ValueError(
            f"Another process is working on the run in {out}. Wait for it to end, or choose another --out. If there is "
            f"none, remove {out / LOCK}: a file system without flock keeps it after a crash."
        )
    until.callback(_tidy, out)
    return finished(out)


def make(out: Path) -> None:
    """Make the folder. A ValueError where there can be none, such as in /proc."""
    with files.written(out):
        out.mkdir(parents=True, exist_ok=True)


def _tidy(out: Path) -> None:
    """Remove a folder that holds only the lock, because an error was found before anything was written."""
    if [path.name for path in out.iterdir()] == [LOCK]:
        shutil.rmtree(out, ignore_errors=True)


def refuse_other_run(out: Path, config: Config, resume: bool) -> None:
    """Raise a ValueError for a folder that holds another run, or this one without ``resume``."""
    theirs = saved_config(out)
    if theirs is None:
        if out.exists() and not out.is_dir():
            raise ValueError(f"{out} is a file. Choose another --out.")
        if out.exists() and any(not p.name.endswith(".tmp") and p.name != LOCK for p in out.iterdir()):
            raise ValueError(f"{out} is not empty, and there is no run in it. Choose another --out.")
        return
    a, b = ({**identity(c), "init": c.init} for c in (theirs, config))
    if a != b:
        differ = "; ".join(differences(a, b))
        raise ValueError(f"{out} holds another run: {differ}. Choose another folder, or use the settings of that run.")
    if (kept := out / LABELS).exists() and kept.read_bytes() != Path(config.labels).read_bytes():
        raise ValueError(f"{config.labels} has changed since the run in {out} began. Choose another --out.")
    if not resume:
        raise ValueError(f"{out} already holds this run. Continue it with --resume, or choose another --out.")


def saved_config(out: Path) -> Config | None:
    """The settings of the run in a folder. None if there is none."""
    path = out / "config.json"
    if not path.exists():
        return None
    content = files.read_json(path)
    try:
        if content is None:
            raise ValueError("it is not a JSON object")
        return typed(Config, content)
    except ValueError as error:
        why = str(error).rstrip(".")
        raise ValueError(f"{path} is not readable: {why}. Restore it, or choose another --out.") from None


def finished(out: Path) -> Run | None:
    """The record of the run in a folder, if it has ended."""
    return store.read(out / "result.json", Run)


def write_epochs(out: Path, epochs: list[Epoch]) -> None:
    """metrics.jsonl: one line per epoch, always up to the checkpoint."""
    files.write(out / "metrics.jsonl", epochs_text(epochs))


def epochs(out: Path) -> list[Epoch]:
    """The epochs of the run in a folder, as far as written. A ValueError for a file of anything else."""
    path = out / "metrics.jsonl"
    try:
        return epochs_of(path.read_text(encoding="utf-8")) if path.is_file() else []
    except ValueError as error:
        raise ValueError(
            f"{path} is not readable: {str(error).rstrip('.')}. Remove it and result.json. The command that wrote them "
            "will write them again from the checkpoint."
        ) from None
