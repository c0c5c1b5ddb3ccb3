"""Curves for TensorBoard: what a run's epochs say, one step each."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ausam.lab.report.records import Epoch
from ausam.lab.training import folder


def require() -> None:
    """Raise a ValueError if TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError(
            '--tensorboard needs the package tensorboard, which is not installed: pip install "ausam[tensorboard]"'
        )


def logged(epochs: Iterator[Epoch], run: Path, out: Path) -> Iterator[Epoch]:
    """The same epochs, each also written to ``out``.

    What ``out`` held is replaced by all epochs of the run's metrics.jsonl, so that a resumed run shows each epoch once.
    """
    from torch.utils.tensorboard.writer import SummaryWriter

    def write(epoch: Epoch) -> None:
        writer.add_scalar(f"test_{epoch.test.name}", epoch.test.value, epoch.epoch)
        for name in ("train_loss", "lr", "images_per_second"):
            writer.add_scalar(name, getattr(epoch, name), epoch.epoch)
        writer.flush()

    first = next(epochs, None)
    shutil.rmtree(out, ignore_errors=True)
    writer: Any = SummaryWriter(out)
    try:
        for epoch in folder.epochs(run):
            write(epoch)
        if first is not None:
            yield first
        for epoch in epochs:
            write(epoch)
            yield epoch
    finally:
        writer.close()
