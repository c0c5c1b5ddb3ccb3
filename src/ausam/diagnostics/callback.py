"""Diagnostics during training: measure every N steps and write to CSV and TensorBoard."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ausam.diagnostics.arguments import count, positive
from ausam.diagnostics.batches import Batch, take_samples
from ausam.diagnostics.geometry import step_geometry
from ausam.diagnostics.hessian import hessian_eigenvalues, hessian_trace
from ausam.diagnostics.objective import LossFn
from ausam.diagnostics.sharpness import sharpness

Row = dict[str, float]
GEOMETRY = ("loss", "gradient_norm", "cosine", "descent", "loss_rank")


def _geometry(model: nn.Module, loss_fn: LossFn, batches: list[Batch], rho: float, seed: int) -> Row:  # noqa: ARG001
    geometry = step_geometry(model, loss_fn, batches, rho)
    return {column: getattr(geometry, column) for column in GEOMETRY}


def _hessian(model: nn.Module, loss_fn: LossFn, batches: list[Batch], rho: float, seed: int) -> Row:  # noqa: ARG001
    return {"largest_eigenvalue": hessian_eigenvalues(model, loss_fn, batches, seed=seed).values[0]}


def _trace(model: nn.Module, loss_fn: LossFn, batches: list[Batch], rho: float, seed: int) -> Row:  # noqa: ARG001
    trace = hessian_trace(model, loss_fn, batches, seed=seed)
    return {"trace": trace.value, "trace_error": trace.error}


def _sharpness(model: nn.Module, loss_fn: LossFn, batches: list[Batch], rho: float, seed: int) -> Row:
    curve = sharpness(model, loss_fn, batches, [rho], seed=seed)
    return {"worst_sharpness": curve.worst[0], "average_sharpness": curve.average[0]}


# A function of (model, loss_fn, batches, rho, seed) that returns a row, and the columns of that row.
Measure = tuple[Callable[[nn.Module, LossFn, list[Batch], float, int], Row], tuple[str, ...]]

# What can be measured, by name. Add an entry for a measure of your own.
MEASURES: dict[str, Measure] = {
    "geometry": (_geometry, GEOMETRY),
    "sharpness": (_sharpness, ("worst_sharpness", "average_sharpness")),
    "hessian": (_hessian, ("largest_eigenvalue",)),
    "trace": (_trace, ("trace", "trace_error")),
}


class Diagnostics:
    """Measure every ``every`` steps of your own training loop and log the numbers.

    >>> import torch, torch.nn.functional as F
    >>> from ausam.diagnostics import Diagnostics
    >>> _ = torch.manual_seed(0)
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(16, 4), torch.randint(3, (16,))
    >>> losses = lambda x, y: F.cross_entropy(model(x), y, reduction="none")
    >>> diagnostics = Diagnostics(every=2, what=["geometry"], rho=0.05)
    >>> for step in range(4):                                           # after each optimizer step:
    ...     row = diagnostics(step, model, losses, [(x, y)])            # a row at steps 0 and 2, else None
    >>> [row["step"] for row in diagnostics.rows]
    [0, 2]

    Arguments:
        every: steps between two measurements, >= 1.
        what: any of "geometry", "sharpness", "hessian" and "trace", or a measure that you added to ``MEASURES``.
        rho: radius of the perturbations, > 0; use the one you train with.
        samples: how many samples of the batches to use, from the first; None for all.
        seed: seed of the random directions. Every measurement uses the same ones, so that rows can be compared.
        csv: file to which rows are appended, or None. A file with different columns is refused.
        tensorboard: folder for TensorBoard, or None. Needs the package tensorboard.

    Cost per measurement: "geometry" two training steps, "sharpness" about ten steps, "hessian" and "trace" 60 to 120
    Hessian-vector products. The model is left as it was.
    """

    def __init__(
        self,
        every: int = 100,
        what: Sequence[str] = ("geometry", "sharpness"),
        *,
        rho: float = 0.05,
        samples: int | None = None,
        seed: int = 0,
        csv: str | Path | None = None,
        tensorboard: str | Path | None = None,
    ) -> None:
        self.every = count("every", every)
        self.what = (what,) if isinstance(what, str) else tuple(what)
        unknown = [name for name in self.what if name not in MEASURES]
        if unknown or not self.what:
            raise ValueError(f"what is {what!r}. Choose from {', '.join(MEASURES)}.")
        self.rho, self.samples, self.seed = positive("rho", rho), samples, count("seed", seed, low=0)
        self.columns = ("step", *(column for name in self.what for column in MEASURES[name][1]))
        self.rows: list[Row] = []
        self._last: int | None = None
        self._file = None if csv is None else _prepare_file(Path(csv), self.columns)
        self._writer = None if tensorboard is None else _writer(tensorboard)

    def __call__(self, step: int, model: nn.Module, loss_fn: LossFn, batches: Iterable[Batch]) -> Row | None:
        """Measure if this step is due, at most once per step; return the logged row, or None."""
        if step % self.every or step == self._last:
            return None
        self._last = step
        data = take_samples(batches, self.samples)
        row: Row = {"step": step}
        for name in self.what:
            row |= MEASURES[name][0](model, loss_fn, data, self.rho, self.seed)
        self.rows.append(row)
        if self._file is not None:
            with self._file.open("a", newline="") as file:
                csv.DictWriter(file, self.columns).writerow(row)
        if self._writer is not None:
            for column in self.columns[1:]:
                self._writer.add_scalar(f"diagnostics/{column}", row[column], step)
            self._writer.flush()
        return row

    def lightning(self, loss_fn: LossFn, batches: Sequence[Batch]) -> Any:
        """A Lightning callback: ``Trainer(callbacks=[diagnostics.lightning(losses, batches)])``.

        ``loss_fn`` calls the LightningModule or a module inside it; put the batches on its device.
        """
        from lightning.pytorch import Callback

        diagnostics = self

        class Measuring(Callback):  # type: ignore[misc]  # the type checker does not read the framework
            def on_train_batch_end(self, trainer: Any, module: nn.Module, *_: Any) -> None:
                if trainer.is_global_zero:
                    diagnostics(trainer.global_step, module, loss_fn, batches)

        return Measuring()

    def transformers(self, loss_fn: LossFn, batches: Sequence[Batch]) -> Any:
        """A callback of the Hugging Face Trainer: ``Trainer(..., callbacks=[diagnostics.transformers(losses, data)])``.

        ``loss_fn`` calls the model that the Trainer trains; put the batches on its device.
        """
        from transformers import TrainerCallback

        diagnostics = self

        class Measuring(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, args: Any, state: Any, control: Any, *, model: nn.Module, **_: Any) -> None:  # noqa: ARG002
                if state.is_world_process_zero:
                    diagnostics(state.global_step, model, loss_fn, batches)

        return Measuring()


def _prepare_file(path: Path, columns: tuple[str, ...]) -> Path:
    """Return the file with its header row written; refuse a file that has different columns."""
    header = ",".join(columns)
    if path.exists() and path.stat().st_size:
        with path.open() as file:
            existing = file.readline().strip()
        if existing != header:
            raise ValueError(f"{path} has the columns {existing}, not {header}. Choose another file.")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(header + "\n")
    return path


def _writer(folder: str | Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            'TensorBoard is not installed. Run pip install "ausam[tensorboard]", or pass csv= instead.'
        ) from error
    return SummaryWriter(str(folder))
