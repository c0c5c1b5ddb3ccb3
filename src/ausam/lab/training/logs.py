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

from ausam.lab.config import Config
from ausam.lab.records import files
from ausam.lab.records.results import Epoch
from ausam.lab.records.score import measured_on

Figures = dict[str, float]


class LogError(RuntimeError):
    """A log accepts no more epochs; the run itself is kept."""


class Log(Protocol):
    """A destination for the figures of each epoch."""

    held: int  # the last epoch written by an earlier process

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
                if epoch.epoch > log.held:
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
            raise ValueError(
                f'--log {kind} needs the package {kind}, which is not installed: pip install "ausam[{kind}]"'
            )


class Csv:
    """``metrics.csv`` in the folder of the run: a row per epoch."""

    held = 0  # it begins again, with the epochs that are done

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

    held = 0  # it begins again, with the epochs that are done

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


class _Remembered:
    """A run at a service. A file in the run's folder keeps its identity and its last epoch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        found = files.read_json(path) or {}
        self.id = found["id"] if isinstance(found.get("id"), str) else ""
        self.held = found["epoch"] if self.id and isinstance(found.get("epoch"), int) else 0

    def keep(self, name: str, epoch: int) -> None:
        """Write that file."""
        files.write_json(self._path, {"id": name, "epoch": epoch})


class Wandb:
    """A run of Weights & Biases. wandb honours ``WANDB_MODE``, ``WANDB_PROJECT`` and its other variables."""

    def __init__(self, logs: Logs, config: Config, run: Path) -> None:
        import wandb

        self._memory = _Remembered(run / "wandb.json")
        self.held = self._memory.held
        self._run: Any = None
        self._id = self._memory.id or uuid.uuid4().hex
        if self.held >= config.epochs:
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
        self._memory.keep(self._id, epoch)

    def close(self, ended: bool) -> None:
        """Let wandb send the rest."""
        if self._run is not None:
            self._run.finish(exit_code=0 if ended else 1)


class Mlflow:
    """A run of MLflow, at ``MLFLOW_TRACKING_URI`` or in ``OUT/mlflow.db``."""

    def __init__(self, logs: Logs, config: Config, run: Path) -> None:
        import mlflow

        self._broken = mlflow.exceptions.MlflowException
        self._memory = _Remembered(run / "mlflow.json")
        self.held = self._memory.held
        if self.held >= config.epochs:
            self._client: Any = None
            return
        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{logs.out.absolute() / 'mlflow.db'}"
        try:
            self._client = mlflow.MlflowClient(place)
            self._begin(logs, config)
        except self._broken as error:
            why = " ".join(str(error).split())
            raise ValueError(
                f"MLflow at {place} refuses: {why} Set MLFLOW_TRACKING_URI to one that answers."
            ) from error

    def _begin(self, logs: Logs, config: Config) -> None:
        client, self._id = self._client, self._memory.id
        if self._id:
            # a killed process may have written an epoch that the file does not record
            points = client.get_metric_history(self._id, "lr")
            self.held = max((point.step for point in points), default=0)
            client.update_run(self._id, "RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "ausam")
        found = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if found is None else found.experiment_id
        self._id = client.create_run(experiment, run_name=logs.name or logs.out.absolute().name).info.run_id
        self._memory.keep(self._id, 0)
        for key, value in asdict(config).items():
            client.log_param(self._id, key, value)

    def write(self, epoch: int, figures: Figures) -> None:
        """MLflow's step is the epoch; ``lr`` comes last, because it is used to count the epochs."""
        try:
            for name in sorted(figures, key=lambda name: name == "lr"):
                self._client.log_metric(self._id, name, figures[name], step=epoch)
        except self._broken as error:
            raise LogError(f"MLflow has stopped accepting data: {' '.join(str(error).split())}") from error
        self._memory.keep(self._id, epoch)

    def close(self, ended: bool) -> None:
        """Record how the run ended."""
        if self._client is not None:
            self._client.set_terminated(self._id, "FINISHED" if ended else "KILLED")


KINDS: dict[str, Callable[[Logs, Config, Path], Log]] = {
    "csv": Csv,
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
}
