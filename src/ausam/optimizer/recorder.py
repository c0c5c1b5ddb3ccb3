"""Recorder: what the loss function returned in the passes of one step."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ausam.common.tensors import HALF
from ausam.feedback import Feedback

Measured = Literal["loss", "perturbed"]


class Recorder:
    """Per-sample losses and outputs of a step, and how many samples passed through the model.

    Arguments:
        index: dataset index of each sample, or None.
    """

    def __init__(self, index: Tensor | None = None) -> None:
        self.index = index
        self.n = None if index is None else len(index)  # the number of samples; None until it is known
        self.outputs: Any = None  # of the last forward
        self.samples_forward = 0
        self.samples_backward = 0
        self.passes: list[Tensor] = []  # the losses of each pass, to see whether they are finite
        self._columns: dict[Measured, Tensor] = {}
        self._outputs_at_w: Any = None  # for all rows, detached; from the first pass if none is at w
        self._outputs_in_parts = False

    def record(self, result: Any, rows: Tensor | None, column: Measured, *, shifted: bool) -> Tensor:
        """Check what a forward returned, keep it, and return the losses.

        Arguments:
            result: the losses, or the losses and the outputs.
            rows: the samples that it belongs to; None for all.
            column: the feedback column for the losses.
            shifted: whether the weights were shifted.
        """
        losses, self.outputs = losses_and_outputs(result)
        losses = per_sample(losses, self.n if rows is None else len(rows))
        if self.n is None:
            self.n = losses.shape[0]
        self.samples_forward += losses.shape[0]
        values = losses.data  # unlike detach(), this may be read or written without a trace in the graph
        self.passes.append(values)
        if rows is None:
            self._columns[column] = values
        else:
            known = self._columns.get(column)
            known = losses.new_full((self.n,), torch.nan) if known is None else known.clone()
            known[rows] = values
            self._columns[column] = known
        if self.outputs is not None:
            self._keep_outputs(rows, shifted=shifted)
        return losses

    def column(self, name: Measured) -> Tensor:
        """The losses of one feedback column; NaN where they were not evaluated."""
        if name not in self._columns:
            like = next(iter(self._columns.values()), torch.empty(0))
            self._columns[name] = torch.full_like(like, torch.nan)
        return self._columns[name]

    def feedback(self) -> Feedback:
        """What the step learned about each sample."""
        return Feedback(self.index, self.column("loss"), self.column("perturbed"), self._outputs_at_w)

    def _keep_outputs(self, rows: Tensor | None, *, shifted: bool) -> None:
        if rows is None:
            if self._outputs_at_w is None or not shifted:
                self._outputs_at_w = tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, self.outputs)
                self._outputs_in_parts = False
        elif not shifted and (self._outputs_at_w is None or self._outputs_in_parts):
            # The method never sees the whole batch at w: assemble the parts that it does see, if they are one tensor.
            z = self.outputs.detach() if isinstance(self.outputs, Tensor) else None
            if z is not None and z.is_floating_point() and len(z) == len(rows):
                if self._outputs_at_w is None:
                    self._outputs_at_w = z.new_full((self.n or 0, *z.shape[1:]), torch.nan)
                    self._outputs_in_parts = True
                self._outputs_at_w[rows.to(z.device)] = z


def losses_and_outputs(result: Any) -> tuple[Any, Any]:
    """The two things that a loss function may return; None for outputs that it does not return."""
    if not isinstance(result, tuple):
        return result, None
    if len(result) != 2:
        raise TypeError(
            f"loss_fn returned {len(result)} things, but the losses, or the losses and the outputs, are needed. Put "
            "further outputs into one: return losses, (z, features)."
        )
    return result


def per_sample(losses: Any, expected: int | None) -> Tensor:
    """The losses in at least float32 if there is one per sample; otherwise an error that says what to return."""
    if not isinstance(losses, Tensor):
        raise TypeError(
            f"loss_fn returned a {type(losses).__name__}, but per-sample losses are needed: a tensor of shape (n,), "
            "or (losses, outputs)."
        )
    shape = losses.shape
    if not shape:
        raise TypeError(
            "loss_fn returned a scalar, but per-sample losses are needed. "
            'Build the loss with reduction="none", e.g. F.cross_entropy(model(x), y, reduction="none").'
        )
    if len(shape) != 1:
        square = len(shape) == 2 and 1 < shape[0] == shape[1] and expected in (None, shape[0])
        broadcast = "If outputs of shape (n, 1) met targets of shape (n,), use outputs.squeeze(1). " if square else ""
        raise ValueError(
            f"loss_fn returned losses of shape {tuple(shape)}, but one loss per sample is needed, shape (n,). "
            f"{broadcast}Average what belongs to one sample, e.g. losses.flatten(1).mean(1)."
        )
    if expected is not None and shape[0] != expected:
        raise ValueError(f"loss_fn returned {shape[0]} losses for {expected} samples. Return one loss per sample.")
    if shape[0] == 0:
        raise ValueError("The batch is empty, so it has no loss. Skip empty batches.")
    return losses.float() if losses.dtype in HALF else losses
