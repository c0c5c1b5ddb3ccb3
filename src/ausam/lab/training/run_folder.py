"""The folder of a run: which run it holds, whether it has finished, and its metrics."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ausam.lab.config import NOT_PART_OF_IDENTITY, Config, completed, differences
from ausam.lab.records import digests, files
from ausam.lab.records import results as records
from ausam.lab.records.locks import file_lock
from ausam.lab.records.results import Epoch, Run
from ausam.lab.registry.expressions import with_canonical
from ausam.lab.training import checkpoint
from ausam.lab.training.schedule import cannot_extend

log = logging.getLogger("ausam")

LOCK = ".lock"


def claim(out: Path, config: Config, resume: bool, until: contextlib.ExitStack) -> bool:
    """Lock the folder for this run until the stack is closed. True if the run has finished.

    Raises a ValueError for a folder that holds another run, or this one without ``resume``, or that another process is
    using.
    """
    refuse_foreign(out, config, resume)  # before locking, which would add a file to an unrelated folder
    make(out)
    with files.written(out):
        mine = until.enter_context(file_lock(out / LOCK))
    if not mine:
        raise ValueError(
            f"Another process is working on the run in {out}. Wait for it to end, or choose another --out."
        )
    until.callback(_tidy, out)
    refuse_foreign(out, config, resume)
    run = finished(out)
    if run is None or not _same(asdict(run.config), asdict(config)):
        return False
    if files.read_json(out / "config.json") != asdict(run.config):
        files.write_json(out / "config.json", asdict(run.config))
    return True


def make(out: Path) -> None:
    """Make the folder; a ValueError where there can be none, such as in /proc."""
    with files.written(out):
        try:
            out.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:
            raise ValueError(f"{out} cannot be made: {error.strerror}. Choose another --out.") from error


def _tidy(out: Path) -> None:
    """Remove a folder that holds only the lock, because an error was found before anything was written."""
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
            raise ValueError(f"{out} is not empty, and there is no readable run in it. Choose another --out.")
        return
    if theirs | {k: mine[k] for k in NOT_PART_OF_IDENTITY if k != "init"} != mine:
        _explain(out, theirs, mine, resume)
    if not resume:
        raise ValueError(f"{out} already holds this run. Continue it with --resume, or choose another --out.")


def _explain(out: Path, theirs: dict[str, Any], mine: dict[str, Any], resume: bool) -> None:
    """Raise a ValueError unless the run in the folder can become this one: extended, or with damaged settings."""
    there = checkpoint.settings(out)
    if there is not None and _same(there, mine):
        log.warning("%s is damaged; the settings are taken from the last checkpoint.", out / "config.json")
        return
    longer = theirs | {k: mine[k] for k in (*NOT_PART_OF_IDENTITY, "epochs") if k != "init"} == mine
    if resume and longer and isinstance(theirs["epochs"], int) and theirs["epochs"] > 0:
        why = cannot_extend(
            Config(**{**mine, "epochs": theirs["epochs"]}), mine["epochs"], checkpoint.saved_epochs(out)
        )
        if why is None:
            return
        raise ValueError(
            f"{out} holds this run with {theirs['epochs']} epochs, and it cannot be changed to {mine['epochs']}: {why}"
            ". Choose another --out. (A run with --lr-steps 1, a constant rate, can be made longer.)"
        )
    raise ValueError(
        f"{out} holds another run: {'; '.join(differences(theirs, mine)) or 'an unknown setting'}. "
        "Choose another --out, or use the settings of that run."
    )


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two settings describe the same run, wherever it is computed."""
    a, b = with_canonical(completed(a)), with_canonical(completed(b))
    return a | {k: b[k] for k in NOT_PART_OF_IDENTITY} == b


def saved_settings(out: Path) -> dict[str, Any] | None:
    """The settings of the run in a folder; those that did not exist at the time have their defaults."""
    theirs = files.read_json(out / "config.json")
    if theirs is None and (out / "config.json").exists() and (theirs := checkpoint.settings(out)) is not None:
        log.warning("%s is damaged; the settings are taken from the last checkpoint.", out / "config.json")
    return None if theirs is None else with_canonical(completed(theirs))


def sealed_settings(out: Path) -> dict[str, Any] | None:
    """The same from the last checkpoint, if there is one: unlike config.json, it has a digest."""
    theirs, sealed = saved_settings(out), checkpoint.settings(out)
    return theirs if theirs is None or sealed is None else with_canonical(completed(sealed))


def finished(out: Path) -> Run | None:
    """The record of the run in a folder, if it has ended. A damaged result counts as missing, with a warning.

    If metrics.jsonl does not match the digest in it, it is rewritten from the checkpoint; so is an unreadable
    config.json.
    """
    path = out / "result.json"
    try:
        run = records.read(path, Run)
        if run is None and path.exists():
            raise ValueError(f"{path} is damaged")
    except ValueError as error:
        what = str(error).partition(". Remove it")[0]
        log.warning("%s. It is rewritten when the run is resumed.", what)
        return None
    if run is None:
        return None
    _mend_metrics(out, run)
    if files.read_json(out / "config.json") is None:
        log.warning("%s is damaged; it is rewritten from the result.", out / "config.json")
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
            f"{path} is damaged, and {out} has no checkpoint to rewrite it from. Remove that folder and "
            "run the same command again."
        )
    log.warning("%s is damaged; it is rewritten from the checkpoint.", path)
    files.write(path, saved["epochs"])


def write_epochs(out: Path, epochs: list[Epoch]) -> None:
    """metrics.jsonl: one line per epoch, always up to the checkpoint."""
    files.write(out / "metrics.jsonl", records.epochs_text(epochs))


def epochs(out: Path) -> list[Epoch]:
    """The epochs of the run in a folder, as far as written."""
    return records.read_epochs(out / "metrics.jsonl")
