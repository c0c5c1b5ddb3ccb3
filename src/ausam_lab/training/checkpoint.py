"""Checkpoints: written atomically, read without executing anything. The previous one is used if one is unreadable."""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from ausam_lab.records import files
from ausam_lab.records.run import Epoch, epochs_of, epochs_text

log = logging.getLogger("ausam")

KEEP = 2


class Best(TypedDict):
    """The epoch with the best score so far on samples that are held out to select it, and its weights."""

    epoch: int
    value: float
    model: dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """What a run continues from, after an epoch. Tensors are on the CPU when it was read."""

    epochs: list[Epoch]
    model: dict[str, Tensor]
    optimizer: dict[str, Any]  # of rank 0
    sampler: dict[str, Any]
    audit: dict[str, Any]
    random: Tensor  # torch's random state in rank 0
    seconds: float
    init: str | None = None  # digest of the initial weights
    others: list[dict[str, Any]] = field(default_factory=list)  # the method's memory and random state of other ranks
    average: dict[str, Tensor] | None = None  # of AveragedModel
    best: Best | None = None
    scaler: dict[str, Any] = field(default_factory=dict)  # of GradScaler; empty without one


def save(folder: Path, saved: Checkpoint) -> Path:
    """Write the checkpoint of an epoch and remove all but the newest two."""
    path = folder / f"checkpoint-{len(saved.epochs):05d}.pt"
    write(path, {**vars(saved), "epochs": epochs_text(saved.epochs)})
    for old in newest_first(folder)[KEEP:]:
        old.unlink(missing_ok=True)
    return path


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a torch file atomically."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    files.write(path, buffer.getvalue())


def read(path: Path) -> Any:
    """The content of a torch file. A ValueError if it cannot be read without executing code."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file.")  # a pipe would wait for its writer
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ValueError(f"There is no file {path}.") from error
    except Exception as error:  # any may come; torch's own text advises to switch the protection off
        what = "It is no file of torch.save, or holds more than tensors and plain values, which is not executed."
        raise ValueError(f"{path} cannot be read. {what}") from error


def brief(error: Exception) -> str:
    """The kind of an error and its message, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def load(folder: Path) -> Checkpoint | None:
    """The newest readable checkpoint, or None. Unreadable ones are logged and skipped."""
    for path in newest_first(folder):
        try:
            content = read(path)
            return Checkpoint(**{**content, "epochs": epochs_of(content["epochs"])})
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            log.warning("%s is damaged (%s). The previous one is used.", path, brief(error))
    return None


def for_rank(saved: Checkpoint, rank: int) -> tuple[dict[str, Any], Tensor | None]:
    """The optimizer's state and the random state of one rank. None for a rank that did not exist when it was saved.

    A new rank takes the method's memory from rank 0. Rank 0 counts the samples of all ranks.
    """
    if rank == 0:
        return saved.optimizer, saved.random
    mine = saved.others[rank - 1] if rank <= len(saved.others) else {}
    ours = saved.optimizer["ausam"] | {"samples_forward": 0, "samples_backward": 0}
    ours |= {"memory": mine.get("memory", ours["memory"])}
    return {**saved.optimizer, "ausam": ours}, mine.get("random")


def newest_first(folder: Path) -> list[Path]:
    """The files of the checkpoints in a folder. From 100,000 epochs on their names are longer."""
    return sorted(folder.glob("checkpoint-*.pt"), key=lambda path: (len(path.name), path.name), reverse=True)
