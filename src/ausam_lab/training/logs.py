"""Where the epochs of a run are also written (``--log``): one small protocol and its implementations."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ausam_lab.config import Config
from ausam_lab.records import files
from ausam_lab.records.run import Epoch, measured_on

Figures = dict[str, float]


class Log(Protocol):
    """A destination for the figures of each epoch."""

    last_epoch: int  # the last epoch written by an earlier process

    def write(self, epoch: int, figures: Figures) -> None:
        """Write one finished epoch."""

    def close(self, ended: bool) -> None:
        """Close the log; ``ended``: whether the run has ended."""


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
    def opened(self, config: Config, run: Path, done: Sequence[Epoch]) -> Iterator[Callable[[Epoch], None]]:
        """A function that writes an epoch to each log. Epochs in ``done`` that a log lacks are written at once.

        So every log has each epoch once, however often the run was resumed.
        """
        logs: list[Log] = []
        ended = False

        def write(epoch: Epoch) -> None:
            for log in logs:
                if epoch.epoch > log.last_epoch:
                    log.write(epoch.epoch, figures(epoch))

        try:
            for kind in dict.fromkeys(self.kinds):
                logs.append(KINDS[kind](self, config, run))  # noqa: PERF401  (what was opened is closed if one fails)
            for epoch in done:
                write(epoch)
            yield write
            ended = True
        finally:
            for log in logs:
                log.close(ended)


NO_LOGS = Logs()


def figures(epoch: Epoch) -> Figures:
    """The figures of an epoch that are logged."""
    tests = {epoch.test.name: epoch.test.value, **epoch.test.parts}
    scores = {measured_on(name).replace(" ", "_"): value for name, value in tests.items()}
    counted = ("train_loss", "lr", "seconds", "images_per_second", "samples", "skipped")
    return scores | {k: float(getattr(epoch, k)) for k in counted}


def require(kinds: Sequence[str]) -> None:
    """Raise a ValueError for a kind whose package is not installed."""
    for kind in kinds:
        if kind != "csv" and importlib.util.find_spec(kind) is None:
            raise ValueError(f"--log {kind} needs the package {kind}, which is not installed: pip install {kind}")


class Csv:
    """``metrics.csv`` in the folder of the run: a row per epoch."""

    last_epoch = 0  # it begins again, with the epochs that are done

    def __init__(self, logs: Logs, config: Config, run: Path) -> None:  # noqa: ARG002
        self._path = run / "metrics.csv"
        self._text = io.StringIO()

    def write(self, epoch: int, figures: Figures) -> None:
        """Replace the file by one that includes this epoch."""
        row = {"epoch": epoch, **figures}
        writer = csv.DictWriter(self._text, row.keys(), lineterminator="\n")
        if not self._text.tell():
            writer.writeheader()
        writer.writerow(row)
        files.write(self._path, self._text.getvalue())

    def close(self, ended: bool) -> None:
        """Do nothing: the file is complete after every epoch."""


class TensorBoard:
    """Curves for TensorBoard in ``OUT/tensorboard``."""

    last_epoch = 0  # it begins again, with the epochs that are done

    def __init__(self, logs: Logs, config: Config, run: Path) -> None:  # noqa: ARG002
        from torch.utils.tensorboard.writer import SummaryWriter

        out = logs.out / "tensorboard" / logs.name
        shutil.rmtree(out, ignore_errors=True)
        self._writer: Any = SummaryWriter(out)

    def write(self, epoch: int, figures: Figures) -> None:
        """Add a point to each curve."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def close(self, ended: bool) -> None:  # noqa: ARG002
        """Close its file."""
        self._writer.close()


class Wandb:
    """A run of Weights & Biases. wandb honours ``WANDB_MODE``, ``WANDB_PROJECT`` and its other variables."""

    def __init__(self, logs: Logs, config: Config, run: Path) -> None:
        import wandb

        self._path = run / "wandb.json"  # its identity at the service and its last epoch
        saved = files.read_json(self._path) or {}
        self._id, self.last_epoch = saved.get("id", uuid.uuid4().hex), saved.get("epoch", 0)
        self._run: Any = None
        if self.last_epoch >= config.epochs:
            return
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "ausam"),
                name=logs.name or logs.out.absolute().name,
                group=logs.out.absolute().name if logs.name else None,
                id=self._id,
                resume="allow",
                config=asdict(config),
                dir=str(logs.out),
                settings=wandb.Settings(reinit="create_new", console="off"),  # the runs of a comparison alternate
            )
        except wandb.errors.Error as error:
            why = " ".join(str(error).split())
            raise ValueError(f"wandb refuses: {why} Use wandb login, or set WANDB_MODE=offline.") from error

    def write(self, epoch: int, figures: Figures) -> None:
        """Log with the epoch as wandb's step; wandb ignores a step that it already has."""
        self._run.log(figures, step=epoch)
        files.write_json(self._path, {"id": self._id, "epoch": epoch})

    def close(self, ended: bool) -> None:
        """Let wandb send the rest."""
        if self._run is not None:
            self._run.finish(exit_code=0 if ended else 1)


KINDS: dict[str, Callable[[Logs, Config, Path], Log]] = {
    "csv": Csv,
    "tensorboard": TensorBoard,
    "wandb": Wandb,
}
