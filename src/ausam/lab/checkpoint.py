"""Checkpoints: written atomically, verified on load, and never executed."""

from __future__ import annotations

import hashlib
import io
import logging
import pickle
import re
from pathlib import Path
from typing import Any

import torch

from ausam.lab import files

log = logging.getLogger("ausam")

# The digest is part of the name, so one rename publishes both, and the file stays an ordinary torch file.
NAME = re.compile(r"checkpoint-(\d{5})-([0-9a-f]{16})\.pt")
KEEP = 2


def save(folder: Path, epoch: int, content: dict[str, Any]) -> Path:
    """Write the checkpoint of an epoch and remove all but the newest two."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getvalue()
    path = folder / f"checkpoint-{epoch:05d}-{_digest(data)}.pt"
    files.write(path, data)
    for old in _newest_first(folder)[KEEP:]:
        old.unlink(missing_ok=True)
    return path


def load(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """The newest checkpoint that is whole; a damaged one is named in the log and passed over. None if there is none."""
    for path in _newest_first(folder):
        try:
            data = path.read_bytes()
            match = NAME.fullmatch(path.name)
            if match is None or _digest(data) != match[2]:
                raise ValueError("its content does not match its name")
            content: dict[str, Any] = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
        except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            log.warning("%s is damaged (%s); going back to the one before.", path, str(error).splitlines()[0])
            continue
        return content
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("checkpoint-*.pt") if NAME.fullmatch(p.name)), reverse=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
