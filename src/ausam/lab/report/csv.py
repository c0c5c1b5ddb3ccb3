"""Runs as CSV, one line each, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from ausam.lab.report.records import NamedRun

SETTINGS = ("data", "label_noise", "train_size", "model", "quantize", "batch_size", "lr", "weight_decay", "rho")
FIGURES = ("train_seconds", "samples_forward", "samples_backward", "skipped_steps", "parameters", "weights_sha256")
COLUMNS = (
    *("block", "name", "seed", "method", "policy", "epochs", "metric", "unit", "test_score", "train_score"),
    *(*FIGURES, "init_sha256", "commit", *SETTINGS, "device", "cpu", "gpu", "torch"),
)
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(runs: Iterable[tuple[str, NamedRun]]) -> str:
    """Runs with the block each belongs to, as CSV with a heading; a value that is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: _cell(v) for k, v in _line(block, named).items()} for block, named in runs)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would compute gets an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _line(block: str, named: NamedRun) -> dict[str, Any]:
    run, hardware = named.run, named.run.environment.hardware
    return {
        "block": block,
        "name": named.name,
        "metric": run.test.name,
        "unit": run.test.unit,
        "test_score": run.test.value,
        "train_score": run.train.value,
        "commit": run.environment.commit,
        "torch": run.environment.versions.get("torch"),
        **{k: getattr(run, k) for k in ("seed", "method", "policy", "epochs", "init_sha256", *FIGURES)},
        **{k: getattr(run.config, k) for k in SETTINGS},
        **{k: getattr(hardware, k) for k in ("device", "cpu", "gpu")},
    }
