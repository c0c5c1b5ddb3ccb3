"""What the benchmarks of wrong labels share: a file of finished runs, and how a ranking is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata


def read(path: Path) -> list[dict[str, Any]]:
    """The runs that are finished; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, run: dict[str, Any]) -> None:
    """Add a finished run."""
    with path.open("a") as file:
        file.write(json.dumps(run) + "\n")


def detection(score: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """Area under the curve, and precision among as many samples as have a wrong label; nothing if none has."""
    k = int(wrong.sum())
    if not k:
        return {}
    area = (rankdata(score)[wrong].sum() - k * (k + 1) / 2) / (k * (len(wrong) - k))
    return {"auc": float(area), "precision": float(wrong[np.argsort(-score, kind="stable")[:k]].mean())}
