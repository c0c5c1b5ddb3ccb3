"""Runs as CSV, one line each, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from ausam.lab.records.results import NamedRun

SETTINGS = (
    *("data", "label_noise", "imbalance", "validation", "horizon", "train_stride", "train_size"),
    *("model", "quantize", "batch_size", "lr", "weight_decay", "rho"),
)
FIGURES = ("train_seconds", "samples_forward", "samples_backward", "skipped_steps", "parameters", "weights_sha256")
COLUMNS = (
    *("block", "name", "seed", "method", "policy", "epochs", "metric", "unit", "better", "test_score", "train_score"),
    "parts",
    *(*FIGURES, "init_sha256", "commit", *SETTINGS, "device", "cpu", "gpu", "torch"),
)
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(runs: Iterable[tuple[str, NamedRun]]) -> str:
    """Runs with their blocks, as CSV with a header; an unknown value is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: spreadsheet_cell(v) for k, v in _line(block, named).items()} for block, named in runs)
    return text.getvalue()


def spreadsheet_cell(value: Any) -> Any:
    """Prefix text that a spreadsheet would evaluate with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _line(block: str, named: NamedRun) -> dict[str, Any]:
    run, hardware = named.run, named.run.environment.hardware
    return {
        "block": block,
        "name": named.name,
        "metric": run.test.name,
        "unit": run.test.unit,
        "better": "lower" if run.test.lower_is_better else "higher",
        "parts": "; ".join(f"{name} {value:.6g}" for name, value in run.test.parts.items()),
        "test_score": run.test.value,
        "train_score": run.train.value,
        "commit": run.environment.commit,
        "torch": run.environment.versions.get("torch"),
        **{k: getattr(run, k) for k in ("seed", "method", "policy", "epochs", "init_sha256", *FIGURES)},
        **{k: getattr(run.config, k) for k in SETTINGS},
        **{k: getattr(hardware, k) for k in ("device", "cpu", "gpu")},
    }
