"""Snapshots: the weights and scores of earlier epochs, kept for diagnosis, not to resume from.

A checkpoint is removed once there are two newer ones. A snapshot (``--every N``) stays, and holds only what a diagnosis
needs: the settings, the weights and the sampler's table.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ausam_lab.config import Config
from ausam_lab.training import checkpoint, kept

NAME = re.compile(r"snapshot-(\d{5,})\.pt")
KINDS = {key: checkpoint.KINDS[key] for key in ("config", "model", "sampler")}


@dataclass(frozen=True)
class Saved:
    """A file with the weights and the scores after an epoch."""

    epoch: int
    path: Path

    @property
    def digest(self) -> str:
        """Identifies its content."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]

    def load(self) -> dict[str, Any]:
        """Its content, on the CPU; a ValueError if it is damaged."""
        try:
            content = checkpoint.read(self.path, KINDS)
        except Exception as error:  # a foreign file may cause any exception
            why = checkpoint.brief(error)
            raise ValueError(f"{self.path} is damaged ({why}). Remove it; the others can still be measured.") from error
        return content | {"model": kept.of_epoch(content["model"], content.get("average"))}


def save(folder: Path, epoch: int, config: Config, model: dict[str, Tensor], sampler: dict[str, Any]) -> None:
    """Keep the settings, the weights that the epoch was evaluated with, and the sampler's state."""
    content = {"config": json.dumps(asdict(config)), "model": model, "sampler": sampler}
    checkpoint.write(folder / f"snapshot-{epoch:05d}.pt", content)


def available(folder: Path) -> list[Saved]:
    """The epochs whose weights are available, in order: snapshots, and checkpoints for the others."""
    saved: dict[int, Saved] = {}
    for pattern, paths in ((checkpoint.NAME, checkpoint.newest_first(folder)), (NAME, folder.glob("snapshot-*.pt"))):
        for path in paths:
            if match := pattern.fullmatch(path.name):
                saved[int(match[1])] = Saved(int(match[1]), path)
    return [saved[epoch] for epoch in sorted(saved)]


def discard_checkpoints(out: Path, keep: str) -> None:
    """Remove what a finished run need not keep (all, weights or none); a second call changes nothing.

    "weights" turns the last checkpoint into a snapshot of the weights that the run is judged by, without the state of
    the optimizer. It is written before anything is removed.
    """
    if keep == "all":
        return
    if keep == "weights" and (saved := checkpoint.load(out)) is not None:
        save(out, len(saved.epochs), saved.config, kept.of_run(saved), saved.sampler)
    for path in checkpoint.newest_first(out):
        path.unlink(missing_ok=True)
