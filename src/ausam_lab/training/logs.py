"""Where the epochs of a run are also written (``--log``)."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ausam_lab.records import files
from ausam_lab.records.run import Epoch, measured_on

KINDS = ("csv", "tensorboard")


@dataclass(frozen=True)
class Logs:
    """The logs of a run: their kinds, the command's folder (``--out``), and the run's name if there are several."""

    kinds: tuple[str, ...] = ()
    out: Path = Path()
    name: str = ""

    def of(self, name: str) -> Logs:
        """The logs of one of several runs."""
        return replace(self, name=name)

    @contextlib.contextmanager
    def opened(self, run: Path, done: Sequence[Epoch]) -> Iterator[Callable[[Epoch], None]]:
        """A function that writes an epoch to each log. A log begins again with the epochs in ``done``."""
        rows: list[dict[str, float]] = []
        with contextlib.ExitStack() as until:
            writer = None
            if "tensorboard" in self.kinds:
                from torch.utils.tensorboard.writer import SummaryWriter

                folder = self.out / "tensorboard" / self.name
                shutil.rmtree(folder, ignore_errors=True)
                writer = until.enter_context(SummaryWriter(folder))

            def write(epoch: Epoch) -> None:
                rows.append({"epoch": epoch.epoch, **figures(epoch)})
                if "csv" in self.kinds:
                    files.write(run / "metrics.csv", _csv(rows))
                if writer is not None:
                    for name, value in figures(epoch).items():
                        writer.add_scalar(name, value, epoch.epoch)
                    writer.flush()

            for epoch in done:
                write(epoch)
            yield write


NO_LOGS = Logs()


def figures(epoch: Epoch) -> dict[str, float]:
    """The figures of an epoch that are logged."""
    tests = {epoch.test.name: epoch.test.value, **epoch.test.parts}
    scores = {measured_on(name).replace(" ", "_"): value for name, value in tests.items()}
    counted = ("train_loss", "lr", "seconds", "images_per_second", "samples", "skipped")
    return scores | {k: float(getattr(epoch, k)) for k in counted}


def require(kinds: Sequence[str]) -> None:
    """Raise a ValueError for a kind whose package is not installed."""
    if "tensorboard" in kinds and importlib.util.find_spec("tensorboard") is None:
        raise ValueError(
            "--log tensorboard needs the package tensorboard, which is not installed: pip install tensorboard"
        )


def _csv(rows: Sequence[dict[str, float]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
