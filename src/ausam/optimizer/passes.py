"""The two kinds of a step: its passes run through a per-sample loss function, or through torch's closure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ausam.common.rows import samples_in, select_rows
from ausam.common.tensors import PLAIN, Vector
from ausam.feedback import Feedback
from ausam.optimizer.buffers import writable_buffers
from ausam.optimizer.displacement import Measured
from ausam.optimizer.errors import (
    CHANGED_INPUT,
    GRAPH_FROM_OUTSIDE,
    NO_BACKWARD,
    NO_GRAPH,
    NO_LOSSES,
    NO_OUTPUTS,
    WHOLE_BATCH,
    add_note,
    losses_and_outputs,
    per_sample,
)
from ausam.optimizer.step import Step, StepContext

LossFn = Callable[..., Any]


class PerSampleStep(Step):
    """A loss function that returns the loss of each sample, and the batch that it is called with.

    The arguments are those of :meth:`SharpnessAware.backward`, with ``total`` for its ``reduce="sum"``.
    """

    def __init__(
        self,
        context: StepContext,
        loss_fn: LossFn,
        batch: tuple[Any, ...],
        *,
        index: Tensor | None,
        weight: Tensor | None,
        backward: Callable[[Tensor], Any],
        total: bool,
        whole: bool,
        replay: bool,
    ) -> None:
        super().__init__(context, loss_fn, index, replay=replay)
        leaves = batch if PLAIN.issuperset(map(type, batch)) else tree_leaves(batch)
        self._batch = batch
        self._tensors = [x for x in leaves if isinstance(x, Tensor) and not x.is_inference()]
        self._versions = [x._version for x in self._tensors]  # changes if a tensor is written to
        if [x for x in self._tensors if x.grad_fn is not None]:
            raise ValueError(GRAPH_FROM_OUTSIDE)
        self._weight = weight
        self._back_propagate = backward
        self._total = total
        self._whole = whole
        self._n = None if index is None else len(index)  # the number of samples; None until it is known
        self._outputs_at_w: Any = None  # for all rows, detached; from the first pass if none is at w
        self._outputs_in_parts = False

    @property
    def count(self) -> int:
        """The number of samples. Before the first pass, taken from the index, the weights or the batch."""
        if self._n is None:
            self._n = samples_in((self._weight,) if self._weight is not None else self._batch)
        return self._n

    def result(self) -> Feedback:
        """What the step learned about each sample."""
        return Feedback(self.index, self.loss, self.perturbed, self._outputs_at_w)

    def forward(self, rows: Tensor | None = None, *, grad: bool = True) -> Tensor:
        """Per-sample losses at the current weights, of all rows or some. ``grad=False`` builds no graph."""
        if self._whole and rows is not None:
            raise ValueError(WHOLE_BATCH)
        if self.evaluated and [x._version for x in self._tensors] != self._versions:
            self.warnings.append(CHANGED_INPUT)
        moved = self._displacement
        shifted = moved is not None and moved.active
        column: Measured = moved.measures if moved is not None and shifted else "loss"
        self._guard.before_pass(training=grad, shifted=shifted)
        batch = self._batch if rows is None else select_rows(self._batch, rows, self.count)
        try:
            result = self._call(batch, grad=grad)
        except (RuntimeError, ValueError, IndexError) as error:
            add_note(error)
            if rows is not None:
                error.add_note(
                    f"This method called loss_fn with {len(rows)} of the {self.count} rows of the batch. Let loss_fn "
                    "capture what is not per sample, such as a graph, or use a method that keeps the batch whole."
                )
            raise
        losses, self._outputs = losses_and_outputs(result) if isinstance(result, tuple) else (result, None)
        losses = per_sample(losses, self._n if rows is None else len(rows))
        if self._n is None:
            self._n = len(losses)
        if self._weight is not None and self._weight.shape != (self._n,):
            raise ValueError(
                f"weight has shape {tuple(self._weight.shape)} for {self._n} samples. Give one number per sample: "
                f"shape ({self._n},)."
            )
        values = losses.data  # unlike detach(), this may be read or written without a trace in the graph
        self.samples_forward += len(values)
        self.evaluated.append(values)
        self._columns[column] = values if rows is None else self._with_rows(column, rows, values)
        if self._outputs is not None:
            self._keep_outputs(rows, shifted=shifted)
        if column == "perturbed" and not self._context.seen_to_move and not losses.is_meta:
            self._check_moved(self.loss, self.perturbed)
        return losses

    def _with_rows(self, column: Measured, rows: Tensor, values: Tensor) -> Tensor:
        """The feedback's column with the losses of some rows."""
        known = self._columns.get(column)
        known = values.new_full((self.count,), torch.nan) if known is None else known.clone()
        known[rows] = values
        return known

    def _keep_outputs(self, rows: Tensor | None, *, shifted: bool) -> None:
        if rows is None:
            if self._outputs_at_w is None or not shifted:
                self._outputs_at_w = tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, self._outputs)
                self._outputs_in_parts = False
        elif not shifted and (self._outputs_at_w is None or self._outputs_in_parts):
            # The method never sees the whole batch at w: assemble the parts that it does see, if they are one tensor.
            z = self._outputs.detach() if isinstance(self._outputs, Tensor) else None
            if z is not None and z.is_floating_point() and len(z) == len(rows):
                if self._outputs_at_w is None:
                    self._outputs_at_w = z.new_full((self.count, *z.shape[1:]), torch.nan)
                    self._outputs_in_parts = True
                self._outputs_at_w[rows.to(z.device)] = z

    def backward(self, losses: Tensor, rows: Tensor | None = None, *, weighted: bool = True) -> Vector:
        """Gradient of the (weighted) mean of ``losses``, one entry per parameter.

        If the user's loss is a sum, the mean over these rows is multiplied by the number of samples. That factor is a
        part of :attr:`scale`, so what a method remembers does not depend on the batch size.
        """
        if not losses.requires_grad:
            raise RuntimeError(NO_GRAPH)
        n = len(losses)
        self.scale = factor = float(self.count) if self._total else 1.0
        share = torch.full_like(losses, factor / n)  # its own memory: autograd may return this tensor as a .grad
        if self._weight is not None and weighted:
            weight = self._weight if rows is None else self._weight[rows.to(self._weight.device)]
            share *= weight.to(share.device, share.dtype)
        self.samples_backward += n
        if self._sync.active:
            self._sync.before_backward()
        try:
            if self._back_propagate is Tensor.backward:
                torch.autograd.backward(losses, share)  # no graph nodes for the product and the sum
            else:
                mean = (losses * share).sum()  # not their product @, which autocast would compute in half precision
                mean.register_hook(self._keep_scale)  # type: ignore[no-untyped-call]
                self._back_propagate(mean)
        except RuntimeError as error:
            add_note(error)
            raise
        gradient = self.slots.collect(views=self._sync.views)
        return self._sync.after_backward(self.params, gradient) if self._sync.active else gradient

    def _keep_scale(self, factor: Tensor) -> None:
        # The gradient that reaches the mean loss is the factor that the user's backward multiplied it by.
        self.scale = factor.detach() * self.scale

    def predict(self, values: Vector, buffers: Sequence[Tensor]) -> Any:
        """Outputs in evaluation mode at other weights and buffers (a teacher's), without gradient or side effects."""
        # A wrapper of torch.compile may have no flag of its own: it shows that of the module inside.
        modules = [m for m in self._parameters.modules if vars(m).get("training")]

        def restore() -> None:
            for m in modules:
                vars(m)["training"] = True

        self.undo.append(restore)
        with self.at(values):
            self._guard.before_pass(training=False, shifted=True)
            for b, value in zip(writable_buffers(self._parameters.model), buffers, strict=True):
                b.copy_(value)
            self._parameters.model.eval()
            result = self._call(self._batch, grad=False)
            restore()
        if not isinstance(result, tuple):
            raise TypeError(NO_OUTPUTS)
        self.samples_forward += len(result[0])
        return result[1]


class ClosureStep(Step):
    """torch's closure: it runs forward, multiplies the loss by ``scale``, runs backward and returns the loss."""

    def __init__(self, context: StepContext, closure: Callable[[], Any], *, scale: float = 1.0, replay: bool) -> None:
        super().__init__(context, closure, replay=replay)
        self.scale = scale
        self._values: list[Any] = []

    def result(self) -> Any:
        """What the closure returned in its first run, at ``w``."""
        return self._values[0] if self._values else None

    def gradient(self, rows: Tensor | None = None, *, sync: bool = True, weighted: bool = True) -> Vector:  # noqa: ARG002
        """The gradient that one call of the closure leaves behind. The closure weights its samples itself."""
        if rows is not None:
            raise RuntimeError(NO_LOSSES)
        with contextlib.nullcontext() if sync else self.no_sync():
            return self._run()

    def _run(self) -> Vector:
        shifted = self._displacement is not None and self._displacement.active
        self._guard.before_pass(training=True, shifted=shifted)
        if self._sync.active:
            self._sync.before_backward()
        try:
            value = self._call()
        except (RuntimeError, ValueError) as error:
            add_note(error)
            raise
        self._values.append(value)
        seen, parts = self.evaluated, tree_leaves(value)
        seen.extend(torch.as_tensor(x).detach().float().sum() for x in parts if isinstance(x, (Tensor, float, int)))
        gradient = self.slots.collect(views=self._sync.views)
        if self._sync.active:
            gradient = self._sync.after_backward(self.params, gradient)
        if any(isinstance(x, Tensor) and x.requires_grad for x in parts) and all(g is None for g in gradient):
            self.warnings.append(NO_BACKWARD)
        if shifted and len(self._values) > 1 and seen and not self._context.seen_to_move:
            self._check_moved(seen[0], seen[-1])
        return gradient
