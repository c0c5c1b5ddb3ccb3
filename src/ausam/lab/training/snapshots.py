"""Snapshots: the weights and scores of earlier epochs, kept for diagnosis, not to resume from.

A checkpoint is removed once there are two newer ones. A snapshot (``--every N``) stays, and holds only what a diagnosis
needs: the settings, the weights and the sampler's table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ausam.lab.training import checkpoint

NAME = re.compile(r"snapshot-(\d{5,})-([0-9a-f]{16})\.pt")
KEYS = {"config", "model", "sampler"}


@dataclass(frozen=True)
class Saved:
    """A file with the weights and the scores after an epoch."""

    epoch: int
    path: Path

    @property
    def digest(self) -> str:
        """The digest of its content, which ends its name."""
        return self.path.stem.rpartition("-")[2]

    def load(self) -> dict[str, Any]:
        """Its content, on the CPU; a ValueError if it is damaged."""
        try:
            return checkpoint.read(self.path, KEYS)
        except Exception as error:  # a foreign file may cause any exception
            why = " ".join(str(error).split())[:200] or type(error).__name__
            raise ValueError(f"{self.path} is damaged ({why}). Remove it; the others can still be measured.") from error


def save(folder: Path, epoch: int, content: dict[str, Any]) -> Path:
    """Keep the needed part of this checkpoint's content; it replaces another snapshot of the same epoch."""
    path = checkpoint.write(folder, f"snapshot-{epoch:05d}", {k: content[k] for k in sorted(KEYS)})
    for other in folder.glob(f"snapshot-{epoch:05d}-*.pt"):
        if other != path:
            other.unlink(missing_ok=True)
    return path


def available(folder: Path) -> list[Saved]:
    """The epochs whose weights are available, in order: snapshots, and checkpoints for the others."""
    found: dict[int, Saved] = {}
    for pattern, paths in ((checkpoint.NAME, checkpoint.newest_first(folder)), (NAME, folder.glob("snapshot-*.pt"))):
        for path in paths:
            if match := pattern.fullmatch(path.name):
                found[int(match[1])] = Saved(int(match[1]), path)
    return [found[epoch] for epoch in sorted(found)]
