"""Checkpoints: written atomically, read without executing anything; the previous one is used if one is unreadable."""

from __future__ import annotations

import io
import json
import logging
import pickle
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ausam_lab.config import Config
from ausam_lab.records import files
from ausam_lab.records.run import Epoch, epochs_of
from ausam_lab.records.store import typed

log = logging.getLogger("ausam")

NAME = re.compile(r"checkpoint-(\d{5,})\.pt")
KEEP = 2
KINDS: dict[str, Any] = {  # of the entries of a file
    "config": str,
    "model": dict,
    "optimizer": dict,
    "sampler": dict,
    "random": Tensor,
    "epochs": str,
    "seconds": int | float,
    "others": list,
    "init": str | None,
    "average": dict | None,
    "best": dict | None,
}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read."""

    path: Path
    config: Config
    epochs: list[Epoch]
    model: dict[str, Tensor]
    average: dict[str, Tensor] | None  # of AveragedModel
    best: dict[str, Any] | None
    optimizer: dict[str, Any]
    sampler: dict[str, Any]
    random: Tensor
    others: list[dict[str, Any]]  # memory and random numbers of the other ranks
    seconds: float
    init: str | None
    audit: dict[str, Any] | None = None


def save(folder: Path, epoch: int, content: dict[str, Any]) -> Path:
    """Write the checkpoint of an epoch and remove all but the newest two."""
    path = folder / f"checkpoint-{epoch:05d}.pt"
    write(path, content)
    for old in newest_first(folder)[KEEP:]:
        old.unlink(missing_ok=True)
    return path


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a torch file atomically."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    files.write(path, buffer.getvalue())


def read(path: Path, kinds: dict[str, Any], device: torch.device | str = "cpu") -> dict[str, Any]:
    """The content of such a file; some exception if it cannot be read or an entry has the wrong type."""
    content = torch.load(path, map_location=device, weights_only=True)
    if not isinstance(content, dict) or not content.keys() >= kinds.keys():
        raise ValueError("it holds something else")
    for key, kind in kinds.items():
        if not isinstance(content[key], kind):
            raise ValueError(f"its {key} is {content[key]!r:.40}")
    return content


def load(folder: Path, device: torch.device | str = "cpu") -> Checkpoint | None:
    """The newest readable checkpoint, or None; unreadable ones are logged and passed over."""
    for path in newest_first(folder):
        try:
            content = read(path, KINDS, device)
            epochs = epochs_of(content["epochs"])
            if len(epochs) != _epoch(path):
                raise ValueError(f"it should hold {_epoch(path)} epochs, but holds {len(epochs)}")
            config = typed(Config, json.loads(content["config"]))
        except Exception as error:  # noqa: BLE001  (a file that somebody made may cause any)
            log.warning("%s is damaged (%s); using the previous one.", path, brief(error))
            continue
        known = {f.name: content[f.name] for f in fields(Checkpoint) if f.name in content}
        return Checkpoint(**known | {"path": path, "config": config, "epochs": epochs})
    return None


def for_rank(saved: Checkpoint, rank: int) -> tuple[dict[str, Any], Tensor | None]:
    """The optimizer's state and the random numbers of one rank; None for a rank that did not exist when it was saved.

    A new rank takes the method's memory from rank 0. Rank 0 counts the samples of all ranks.
    """
    if rank == 0:
        return saved.optimizer, saved.random
    ours = {**saved.optimizer["ausam"], "samples_forward": 0, "samples_backward": 0}
    mine = saved.others[rank - 1] if rank <= len(saved.others) else {"random": None}
    if "memory" in mine:
        ours["memory"] = mine["memory"]
    return {**saved.optimizer, "ausam": ours}, mine["random"]


def with_settings_of(opt: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's saved state, with the settings of this optimizer in place of the saved ones.

    The settings belong to the run: a checkpoint brings momentum buffers and counters, never another learning rate.
    """
    groups = saved["param_groups"]
    for name in ("steps", "skipped", "samples_forward", "samples_backward"):
        if not isinstance(count := saved["ausam"][name], int) or count < 0:
            raise ValueError(f"its {name} is {count!r:.40}")
    if len(groups) != len(opt.param_groups):
        raise ValueError(f"its optimizer has {len(groups)} parameter groups, not {len(opt.param_groups)}")
    for index, parameter in enumerate(p for group in opt.param_groups for p in group["params"]):
        for key, value in saved["state"].get(index, {}).items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                shapes = f"{tuple(value.shape)}, not {tuple(parameter.shape)}"
                raise ValueError(f"{key} of parameter {index} has shape {shapes}")
    mine = [{**own, "params": theirs["params"]} for own, theirs in zip(opt.param_groups, groups, strict=True)]
    return {**saved, "param_groups": mine}


def saved_epochs(folder: Path) -> int:
    """The number of epochs in the newest checkpoint; 0 without one."""
    return max(map(_epoch, newest_first(folder)), default=0)


def brief(error: Exception) -> str:
    """The message on one line."""
    if isinstance(error, pickle.UnpicklingError):  # torch's own text advises to switch the protection off
        return "it holds more than tensors and plain values, and is not executed"
    if isinstance(error, (KeyError, EOFError)):  # their text alone says nothing: a key, or a byte that pickle met
        return f"it is damaged, or not a file of torch.save ({type(error).__name__}: {error})"
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 200 else f"{text[:200]} ..."


def newest_first(folder: Path) -> list[Path]:
    """The files of the checkpoints in a folder."""
    return sorted((p for p in folder.glob("checkpoint-*.pt") if NAME.fullmatch(p.name)), key=_epoch, reverse=True)


def _epoch(path: Path) -> int:
    """The epoch in a checkpoint's name, as a number, because names sort wrongly from 100,000 on."""
    return int(path.stem.rpartition("-")[2])
