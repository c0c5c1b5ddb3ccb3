"""Results as CSV: one line a run, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

SETTINGS = ("data", "label_noise", "train_size", "model", "quantize", "batch_size", "lr", "weight_decay", "rho")
FIGURES = (
    "method",
    "policy",
    "epochs",
    "test_accuracy",
    "train_accuracy",
    "train_seconds",
    "samples_forward",
    "samples_backward",
    "skipped_steps",
    "parameters",
    "weights_sha256",
    "init_sha256",
    "commit",
)
COLUMNS = ("block", "name", "seed", *FIGURES, *SETTINGS, "device", "cpu", "gpu", "torch")


def csv_text(runs: Iterable[dict[str, Any]]) -> str:
    """The runs as CSV with a heading; a value that is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_line, runs))
    return text.getvalue()


def _line(run: dict[str, Any]) -> dict[str, Any]:
    hardware = {k: run["hardware"].get(k) for k in ("device", "cpu", "gpu")}
    settings = {k: run["config"].get(k) for k in SETTINGS}
    figures = {k: run.get(k) for k in ("block", "name", "seed", *FIGURES)}
    return figures | settings | hardware | {"torch": run["versions"].get("torch")}
