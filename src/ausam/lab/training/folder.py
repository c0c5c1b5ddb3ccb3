"""The folder of a run: whose it is, whether the run is done, and its metrics."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ausam.lab.config import HERE, Config, completed, differences
from ausam.lab.io import digests, files
from ausam.lab.io.locks import held
from ausam.lab.registry.pairs import with_canonical
from ausam.lab.report import records
from ausam.lab.report.records import Epoch, Run
from ausam.lab.training import checkpoint
from ausam.lab.training.schedule import cannot_extend

log = logging.getLogger("ausam")

LOCK = ".lock"


def claimed(out: Path, config: Config, resume: bool, until: contextlib.ExitStack) -> bool:
    """Hold the folder for this run until the stack is left. True if the run is done; a ValueError if it cannot be had.

    Raises a ValueError for a folder that holds another run, or this one without ``resume``, or on which another process
    works.
    """
    refuse_foreign(out, config, resume)  # before the lock, which would be a file in somebody else's folder
    with files.written(out):
        mine = until.enter_context(held(out / LOCK))
    if not mine:
        raise ValueError(f"Another process works on the run in {out}. Wait for its end, or choose another --out.")
    until.callback(_tidy, out)
    refuse_foreign(out, config, resume)
    run = finished(out)
    if run is None or not _same(asdict(run.config), asdict(config)):
        return False
    if files.read_json(out / "config.json") != asdict(run.config):
        files.write_json(out / "config.json", asdict(run.config))
    return True


def _tidy(out: Path) -> None:
    """Remove a folder in which nothing was written but the lock: a mistake was found before."""
    with contextlib.suppress(OSError):
        if [path.name for path in out.iterdir()] == [LOCK]:
            (out / LOCK).unlink()
            out.rmdir()


def refuse_foreign(out: Path, config: Config, resume: bool) -> None:
    """Raise a ValueError for a folder that holds another run, or this one without ``resume``."""
    mine = with_canonical(asdict(config))
    theirs = saved_settings(out)
    if theirs is None:
        if out.exists() and not out.is_dir():
            raise ValueError(f"{out} is a file. Choose another --out.")
        if out.exists() and any(not p.name.endswith(".tmp") and p.name != LOCK for p in out.iterdir()):
            raise ValueError(f"{out} is not empty and holds no run that can be read. Choose another --out.")
        return
    if theirs | {k: mine[k] for k in HERE if k != "init"} != mine:
        _explain(out, theirs, mine, resume)
    if not resume:
        raise ValueError(f"{out} holds this run already. Go on with it by --resume, or choose another --out.")


def _explain(out: Path, theirs: dict[str, Any], mine: dict[str, Any], resume: bool) -> None:
    """Raise a ValueError unless the run in the folder may become this one: made longer, or its settings are damaged."""
    there = checkpoint.settings(out)
    if there is not None and _same(there, mine):
        log.warning("%s is damaged; the settings are taken from the last checkpoint.", out / "config.json")
        return
    longer = theirs | {k: mine[k] for k in (*HERE, "epochs") if k != "init"} == mine
    if resume and longer and isinstance(theirs["epochs"], int) and theirs["epochs"] > 0:
        why = cannot_extend(
            Config(**{**mine, "epochs": theirs["epochs"]}), mine["epochs"], checkpoint.saved_epochs(out)
        )
        if why is None:
            return
        raise ValueError(
            f"{out} holds this run with {theirs['epochs']} epochs, and it cannot have {mine['epochs']}: {why}. Choose "
            "another --out. (A run with --lr-steps 1, a constant rate, can be made longer.)"
        )
    raise ValueError(
        f"{out} holds another run: {'; '.join(differences(theirs, mine)) or 'a setting that is not known'}. "
        "Choose another --out, or give the settings of that run."
    )


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two settings are of one run, wherever it is computed."""
    a, b = with_canonical(completed(a)), with_canonical(completed(b))
    return a | {k: b[k] for k in HERE} == b


def saved_settings(out: Path) -> dict[str, Any] | None:
    """The settings of the run in a folder, as today's: one that did not exist then had its default."""
    theirs = files.read_json(out / "config.json")
    if theirs is None and (out / "config.json").exists() and (theirs := checkpoint.settings(out)) is not None:
        log.warning("%s is damaged; the settings are taken from the last checkpoint.", out / "config.json")
    return None if theirs is None else with_canonical(completed(theirs))


def finished(out: Path) -> Run | None:
    """What is known of the run in a folder, if it has ended. A damaged result counts as none, with a warning.

    metrics.jsonl is held to the digest in it, and written again from the checkpoint if it is damaged; so is config.json
    if it cannot be read.
    """
    path = out / "result.json"
    try:
        run = records.read(path, Run)
        if run is None and path.exists():
            raise ValueError(f"{path} is damaged")
    except ValueError as error:
        what = str(error).partition(". Remove it")[0]
        log.warning("%s. It is written again when the run is resumed.", what)
        return None
    if run is None:
        return None
    _mend_metrics(out, run)
    if files.read_json(out / "config.json") is None:
        log.warning("%s is damaged; it is written again from the result.", out / "config.json")
        files.write_json(out / "config.json", asdict(run.config))
    return run


def _mend_metrics(out: Path, run: Run) -> None:
    path, wanted = out / "metrics.jsonl", run.metrics_sha256
    found = path.read_bytes() if path.is_file() else b""
    if wanted is None or digests.of_bytes(found) == wanted:
        return
    saved = checkpoint.load(out)
    if saved is None or digests.of_bytes(saved["epochs"].encode()) != wanted:
        raise ValueError(
            f"{path} is damaged, and {out} has no checkpoint to write it again from. Remove that folder; "
            "the command that made it runs it again."
        )
    log.warning("%s is damaged; it is written again from the checkpoint.", path)
    files.write(path, saved["epochs"])


def write_epochs(out: Path, epochs: list[Epoch]) -> None:
    """metrics.jsonl, a line per epoch, always as far as the checkpoint."""
    files.write(out / "metrics.jsonl", records.epochs_text(epochs))


def epochs(out: Path) -> list[Epoch]:
    """The epochs of the run in a folder, as far as they are written."""
    return records.read_epochs(out / "metrics.jsonl")
