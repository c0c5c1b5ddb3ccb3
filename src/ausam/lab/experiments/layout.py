"""The layout of a comparison's folder."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

SAFE = "+@(),=-. "  # signs that any file system takes


def run_folder(out: Path, name: str, seed: int) -> Path:
    """The folder of the run of a pair and a seed."""
    return out / "runs" / quote(name, safe=SAFE) / f"seed-{seed}"


def pair_of(folder: str) -> str:
    """The pair whose runs are in a folder of this name."""
    return unquote(folder)
