"""Checkpoints: written atomically, verified on load, and never executed."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ausam.lab.config import HERE, Config, completed, differences
from ausam.lab.io import digests, files

log = logging.getLogger("ausam")

# The digest is part of the name, so one rename publishes both, and the file stays an ordinary torch file.
NAME = re.compile(r"checkpoint-(\d{5})-([0-9a-f]{16})\.pt")
KEEP = 2
KEYS = {"config", "model", "optimizer", "sampler", "random", "epochs", "seconds"}


def save(folder: Path, epoch: int, content: dict[str, Any]) -> Path:
    """Write the checkpoint of an epoch and remove all but the newest two."""
    path = write(folder, f"checkpoint-{epoch:05d}", content)
    for old in newest_first(folder)[KEEP:]:
        old.unlink(missing_ok=True)
    return path


def write(folder: Path, stem: str, content: dict[str, Any]) -> Path:
    """Write a torch file whose name ends with the digest of what it holds."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getvalue()
    path = folder / f"{stem}-{_digest(data)}.pt"
    files.write(path, data)
    return path


def read(path: Path, keys: set[str], device: torch.device | str = "cpu") -> dict[str, Any]:
    """What such a file holds; an error, of any kind, if it does not have its digest or these keys."""
    data = path.read_bytes()
    if _digest(data) != path.stem.rpartition("-")[2]:
        raise ValueError("its content does not match its name")
    content = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    if not isinstance(content, dict) or not content.keys() >= keys:
        raise ValueError("it holds something else")
    return content


def load(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """The newest checkpoint that is whole; a damaged one is named in the log and passed over. None if there is none."""
    for path in newest_first(folder):
        try:
            content = read(path, KEYS, device)
        except Exception as error:  # noqa: BLE001  (a file that somebody made may cause any)
            log.warning("%s is damaged (%s); going back to the one before.", path, _brief(error))
            continue
        return {**content, "path": path}
    return None


def part(saved: dict[str, Any], rank: int) -> tuple[dict[str, Any], Tensor | None]:
    """The optimizer's state and the random numbers of one rank; None for one that was not there when it was saved.

    Such a rank has what rank 0's method remembers. Rank 0 counts the samples of all.
    """
    if rank == 0:
        return saved["optimizer"], saved["random"]
    ours = {**saved["optimizer"]["ausam"], "samples_forward": 0, "samples_backward": 0}
    others = saved.get("others", [])
    mine = others[rank - 1] if rank <= len(others) else {"random": None}
    if "memory" in mine:
        ours["memory"] = mine["memory"]
    return {**saved["optimizer"], "ausam": ours}, mine["random"]


def saved_epochs(folder: Path) -> int:
    """How many epochs the newest checkpoint holds; 0 without one."""
    return max((int(m[1]) for p in newest_first(folder) if (m := NAME.fullmatch(p.name))), default=0)


def settings(folder: Path) -> dict[str, Any] | None:
    """The settings of the run that the newest whole checkpoint belongs to."""
    saved = load(folder)
    return None if saved is None else _settings(saved) or None


@contextlib.contextmanager
def fitting(saved: dict[str, Any], config: Config) -> Iterator[None]:
    """Refuse a checkpoint of another run; and inside, explain the error of a content that does not fit this one."""
    remedy = "Remove that file; --resume then takes the one before."
    theirs, mine = completed(_settings(saved)), asdict(config)
    if other := differences({**theirs, **{k: mine[k] for k in HERE}}, mine):
        raise ValueError(f"{saved['path']} is of another run: {'; '.join(other)}. {remedy}")
    try:
        torch.Generator().set_state(saved["random"].cpu())
        yield
    except (ValueError, TypeError, RuntimeError, AttributeError, LookupError) as error:
        raise ValueError(f"{saved['path']} does not fit this run: {_brief(error)}. {remedy}") from error


def _settings(saved: dict[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(saved["config"])
    except (ValueError, TypeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _brief(error: Exception) -> str:
    """One line of what may be many."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 200 else f"{text[:200]} ..."


def newest_first(folder: Path) -> list[Path]:
    """The files of the checkpoints in a folder."""
    return sorted((p for p in folder.glob("checkpoint-*.pt") if NAME.fullmatch(p.name)), reverse=True)


def _digest(data: bytes) -> str:
    return digests.of_bytes(data)[:16]
