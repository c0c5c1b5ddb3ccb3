"""Diagnostics during training: measure every N steps, keep the rows and append them to a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from torch import nn

from ausam.diagnostics.geometry import step_geometry
from ausam.diagnostics.hessian import hessian_eigenvalues, hessian_trace
from ausam.diagnostics.objective import Batch, LossFn, count, positive, take_samples
from ausam.diagnostics.sharpness import sharpness

Row = dict[str, float]


def _sharpness(model: nn.Module, loss_fn: LossFn, batches: list[Batch], rho: float) -> Row:
    curve = sharpness(model, loss_fn, batches, [rho])
    return {"worst_sharpness": curve.worst[0], "average_sharpness": curve.average[0]}


# What can be measured, by name: a function of (model, loss_fn, batches, rho) that returns a row. Add your own.
MEASURES: dict[str, Callable[[nn.Module, LossFn, list[Batch], float], Row]] = {
    "geometry": lambda model, loss_fn, batches, rho: asdict(step_geometry(model, loss_fn, batches, rho)),
    "sharpness": _sharpness,
    "hessian": lambda model, loss_fn, batches, _: {
        "largest_eigenvalue": hessian_eigenvalues(model, loss_fn, batches).values[0]
    },
    "trace": lambda model, loss_fn, batches, _: {"trace": hessian_trace(model, loss_fn, batches).value},
}


class Diagnostics:
    """Measure every ``every`` steps of your own training loop.

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
        csv: file to which rows are appended, or None. A file with different columns is refused.

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
        csv: str | Path | None = None,
    ) -> None:
        self.every, self.rho, self.samples = count("every", every), positive("rho", rho), samples
        self.what = (what,) if isinstance(what, str) else tuple(what)
        if not self.what or not set(self.what) <= MEASURES.keys():
            raise ValueError(f"what is {what!r}. Choose from {', '.join(MEASURES)}.")
        self.rows: list[Row] = []
        self._file = None if csv is None else Path(csv)

    def __call__(self, step: int, model: nn.Module, loss_fn: LossFn, batches: Iterable[Batch]) -> Row | None:
        """Measure if this step is due, at most once per step; return the row, or None."""
        if step % self.every or (self.rows and step == self.rows[-1]["step"]):
            return None
        data = take_samples(batches, self.samples)
        row: Row = {"step": step}
        for name in self.what:
            row |= MEASURES[name](model, loss_fn, data, self.rho)
        self.rows.append(row)
        if self._file is not None:
            _append(self._file, row)
        return row


def _append(path: Path, row: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", newline="") as file:
        file.seek(0)
        header = file.readline().strip()
        writer = csv.DictWriter(file, row)
        if not header:
            writer.writeheader()
        elif header != ",".join(row):
            raise ValueError(f"{path} has the columns {header}, not {','.join(row)}. Choose another file.")
        writer.writerow(row)
