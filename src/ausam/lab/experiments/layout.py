"""The layout of a comparison's folder."""

from __future__ import annotations

from pathlib import Path

from ausam.lab.registry.pairs import PAIRS


def run_folder(out: Path, name: str, seed: int) -> Path:
    """The folder of the run of a pair and a seed."""
    return out / "runs" / name.replace("*", "star") / f"seed-{seed}"


def pair_of(folder: str) -> str:
    """The pair whose runs are in a folder of this name."""
    name, at, part = folder.partition("@")
    return {pair.replace("*", "star"): pair for pair in PAIRS}.get(name, name) + at + part
