"""Checkpoints: written atomically, verified on load, and never executed."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from ausam.lab.config import NOT_PART_OF_IDENTITY, Config, completed, differences
from ausam.lab.records import digests, files
from ausam.lab.records import results as records
from ausam.lab.records.results import Epoch
from ausam.lab.registry.expressions import with_canonical
from ausam.lab.training.schedule import cannot_extend

log = logging.getLogger("ausam")

# The digest is in the file name, so one rename publishes both and the file stays an ordinary torch file.
NAME = re.compile(r"checkpoint-(\d{5,})-([0-9a-f]{16})\.pt")
KEEP = 2
KINDS: dict[str, Any] = {
    "config": str,
    "model": dict,
    "optimizer": dict,
    "sampler": dict,
    "random": Tensor,
    "epochs": str,
    "seconds": int | float,
    "others": list | None,
    "init": str | None,
}
KEYS = KINDS.keys() - {"others", "init"}  # added later


def save(folder: Path, epoch: int, content: dict[str, Any]) -> Path:
    """Write the checkpoint of an epoch and remove all but the newest two."""
    path = write(folder, f"checkpoint-{epoch:05d}", content)
    for old in newest_first(folder)[KEEP:]:
        old.unlink(missing_ok=True)
    return path


def write(folder: Path, stem: str, content: dict[str, Any]) -> Path:
    """Write a torch file whose name ends with the digest of its content."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getvalue()
    path = folder / f"{stem}-{_digest(data)}.pt"
    files.write(path, data)
    return path


def read(path: Path, keys: set[str], device: torch.device | str = "cpu") -> dict[str, Any]:
    """The content of such a file; some exception if its digest or keys are wrong."""
    data = path.read_bytes()
    if _digest(data) != path.stem.rpartition("-")[2]:
        raise ValueError("its content does not match its name")
    content = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    if not isinstance(content, dict) or not content.keys() >= keys:
        raise ValueError("it holds something else")
    return content


def load(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """The newest intact checkpoint, or None; damaged ones are logged and skipped."""
    for path in newest_first(folder):
        try:
            content = read(path, KEYS, device)
            rows = _rows(content, _epoch(path))
        except Exception as error:  # noqa: BLE001  (a file that somebody made may cause any)
            log.warning("%s is damaged (%s); using the previous one.", path, _brief(error))
            continue
        return {**content, "rows": rows, "path": path}
    return None


def _rows(content: dict[str, Any], epoch: int) -> list[Epoch]:
    """The epochs in a checkpoint; a ValueError for content that no run writes. The run itself checks the rest."""
    for key, kind in KINDS.items():
        if not isinstance(content.get(key), kind):
            raise ValueError(f"its {key} is {content.get(key)!r:.40}")
    if not all(isinstance(v, Tensor) for v in content["model"].values()):
        raise ValueError("its model holds something other than tensors")
    state = content["optimizer"].get("state")
    if not content["optimizer"].keys() >= {"state", "param_groups", "ausam"} or not isinstance(state, dict):
        raise ValueError("its optimizer has the wrong form")
    values = (*content["model"].values(), *_tensors(state))
    ignored = settings_of(content).get("nonfinite") == "ignore"  # the weights of such a run may be NaN
    if not ignored and any(x.is_floating_point() and bool(x.isnan().any()) for x in values):
        raise ValueError("it holds weights that are not numbers")
    if not math.isfinite(content["seconds"]) or content["seconds"] < 0:
        raise ValueError(f"its seconds are {content['seconds']}")
    torch.Generator().set_state(content["random"].cpu())
    rows = records.epochs_of(content["epochs"])
    if [row.epoch for row in rows] != list(range(1, epoch + 1)):
        raise ValueError(f"it should hold epochs 1 to {epoch}, but holds {len(rows)} rows")
    return rows


def _tensors(content: Any) -> list[Tensor]:
    return [x for x in tree_flatten(content)[0] if isinstance(x, Tensor)]


def part(saved: dict[str, Any], rank: int) -> tuple[dict[str, Any], Tensor | None]:
    """The optimizer's state and the random numbers of one rank; None for a rank that did not exist when it was saved.

    A new rank takes the method's memory from rank 0. Rank 0 counts the samples of all ranks.
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
    """The number of epochs in the newest checkpoint; 0 without one."""
    return max((int(m[1]) for p in newest_first(folder) if (m := NAME.fullmatch(p.name))), default=0)


def settings(folder: Path) -> dict[str, Any] | None:
    """The run settings in the newest intact checkpoint."""
    saved = load(folder)
    return None if saved is None else settings_of(saved) or None


@contextlib.contextmanager
def fitting(saved: dict[str, Any], config: Config) -> Iterator[None]:
    """Refuse a checkpoint of another run; inside the context, explain errors from content that does not fit."""
    remedy = "Remove that file; --resume then uses the previous one."
    theirs, mine = with_canonical(completed(settings_of(saved))), with_canonical(asdict(config))
    theirs |= {k: mine[k] for k in NOT_PART_OF_IDENTITY}
    if theirs == mine | {"epochs": theirs["epochs"]} and isinstance(theirs["epochs"], int):
        if (why := cannot_extend(replace(config, epochs=theirs["epochs"]), config.epochs, len(saved["rows"]))) is None:
            theirs = mine
        else:
            raise ValueError(f"{saved['path']} belongs to a run of {theirs['epochs']} epochs: {why}. {remedy}")
    if other := differences(theirs, mine):
        raise ValueError(f"{saved['path']} belongs to another run: {'; '.join(other)}. {remedy}")
    try:
        yield
    except (ValueError, TypeError, RuntimeError, AttributeError, LookupError) as error:
        raise ValueError(f"{saved['path']} does not fit this run: {_brief(error)}. {remedy}") from error


def settings_of(saved: dict[str, Any]) -> dict[str, Any]:
    """The run settings in a checkpoint; empty if they cannot be read."""
    try:
        found = json.loads(saved["config"])
    except (ValueError, TypeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _brief(error: Exception) -> str:
    """The message on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 200 else f"{text[:200]} ..."


def newest_first(folder: Path) -> list[Path]:
    """The files of the checkpoints in a folder."""
    return sorted((p for p in folder.glob("checkpoint-*.pt") if NAME.fullmatch(p.name)), key=_epoch, reverse=True)


def _epoch(path: Path) -> int:
    """The epoch in a checkpoint's name, as a number, because names sort wrongly from 100,000 on."""
    return int(path.name.split("-")[1])


def _digest(data: bytes) -> str:
    return digests.of_bytes(data)[:16]
