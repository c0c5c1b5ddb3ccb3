"""Runs as CSV, one line each, for spreadsheets and data frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ausam_lab.records.comparison import NamedRun
from ausam_lab.report.table import Table, to_csv

SETTINGS = (
    *("data", "label_noise", "imbalance", "validation", "train_size"),
    *("model", "quantize", "batch_size", "lr", "weight_decay", "rho"),
)
FIGURES = ("train_seconds", "samples_forward", "samples_backward", "skipped_steps", "parameters", "weights_sha256")
COLUMNS = (
    *("block", "name", "seed", "method", "policy", "epochs", "metric", "unit", "better", "test_score", "train_score"),
    *("nll", "calibration_error", "parts"),
    *(*FIGURES, "init_sha256", "commit", *SETTINGS, "device", "cpu", "gpu", "torch"),
)


def runs_csv(runs: Iterable[tuple[str, NamedRun]]) -> str:
    """Runs with their blocks, as CSV with a header; an unknown value is empty."""
    values = (_values(block, named) for block, named in runs)
    return to_csv(Table.of(COLUMNS, ([known[name] for name in COLUMNS] for known in values)))


def _values(block: str, named: NamedRun) -> dict[str, Any]:
    run, hardware = named.run, named.run.environment.hardware
    return {
        "block": block,
        "name": named.name,
        "metric": run.test.name,
        "unit": run.test.unit,
        "better": "lower" if run.test.lower_is_better else "higher",
        "parts": "; ".join(f"{name} {value:.6g}" for name, value in run.test.parts.items()),
        "test_score": run.test.value,
        "nll": run.test.nll,
        "calibration_error": run.test.calibration_error,
        "train_score": run.train.value,
        "commit": run.environment.commit,
        "torch": run.environment.versions.get("torch"),
        **{k: getattr(run, k) for k in ("seed", "method", "policy", "epochs", "init_sha256", *FIGURES)},
        **{k: getattr(run.config, k) for k in SETTINGS},
        **{k: getattr(hardware, k) for k in ("device", "cpu", "gpu")},
    }
