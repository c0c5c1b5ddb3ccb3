"""Curves for TensorBoard: what a run's metrics say, an epoch a step."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ausam.lab.io import files

Row = dict[str, Any]
SHOWN = ("test_accuracy", "train_loss", "lr", "images_per_second")


def require() -> None:
    """Raise a ValueError if TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError(
            '--tensorboard needs the package tensorboard, which is not installed: pip install "ausam[tensorboard]"'
        )


def logged(rows: Iterator[Row], run: Path, out: Path) -> Iterator[Row]:
    """The same rows, each also written to ``out``.

    What ``out`` held is replaced by all epochs of the run's metrics.jsonl, so that a resumed run shows each epoch once.
    """
    from torch.utils.tensorboard.writer import SummaryWriter

    def write(row: Row) -> None:
        for name in SHOWN:
            if row.get(name) is not None:
                writer.add_scalar(name, row[name], row["epoch"])
        writer.flush()

    first = next(rows, None)
    shutil.rmtree(out, ignore_errors=True)
    writer: Any = SummaryWriter(out)
    try:
        for row in files.read_rows(run / "metrics.jsonl"):
            write(row)
        if first is not None:
            yield first
        for row in rows:
            write(row)
            yield row
    finally:
        writer.close()
