"""The epochs of a run as figures, and for TensorBoard (``--tensorboard``), in the folder of the run."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ausam_lab.records.run import Epoch, measured_on

FOLDER = "tensorboard"


@contextlib.contextmanager
def opened(out: Path, wanted: bool, done: Sequence[Epoch]) -> Iterator[Callable[[Epoch], None]]:
    """A function that writes an epoch, if it is wanted. The file begins again with the epochs in ``done``."""
    if not wanted:
        yield lambda _: None
        return
    from torch.utils.tensorboard.writer import SummaryWriter

    shutil.rmtree(out / FOLDER, ignore_errors=True)
    with SummaryWriter(out / FOLDER) as writer:

        def write(epoch: Epoch) -> None:
            for name, value in figures(epoch).items():
                writer.add_scalar(name, value, epoch.epoch)
            writer.flush()

        for epoch in done:
            write(epoch)
        yield write


def figures(epoch: Epoch) -> dict[str, float]:
    """The figures of an epoch, by name."""
    tests = {epoch.test.name: epoch.test.value, **epoch.test.parts}
    scores = {measured_on(name).replace(" ", "_"): value for name, value in tests.items()}
    counted = ("train_loss", "lr", "seconds", "images_per_second", "samples", "skipped")
    return scores | {k: float(getattr(epoch, k)) for k in counted}
