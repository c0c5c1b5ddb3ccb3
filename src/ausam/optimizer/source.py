"""Source: where the losses and gradients of a step come from, a per-sample loss function or torch's closure.

A source runs the passes of one step. Around each it guards the buffers (buffers.py), keeps the ``.grad`` slots empty
(gradients.py) and tells DDP's bookkeeping what was reached (sync.py).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ausam.common.atomic import exhaust
from ausam.common.tensors import Vector
from ausam.optimizer.batch import samples_in, select_rows
from ausam.optimizer.buffers import writable_buffers
from ausam.optimizer.gradients import GradientSlots
from ausam.optimizer.journal import new_journal
from ausam.optimizer.recorder import Recorder
from ausam.optimizer.replay import Replay

if TYPE_CHECKING:
    from ausam.optimizer.context import StepContext
    from ausam.optimizer.displacement import Displacement

LossFn = Callable[..., Any]

NO_OUTPUTS = (
    "This method needs the model's outputs, but loss_fn returned only the losses. Return both: "
    'z = model(x); return F.cross_entropy(z, y, reduction="none"), z.'
)

NO_LOSSES = (
    "This method needs per-sample losses, which opt.step(closure) cannot provide. "
    "Call opt.backward(loss_fn, *batch) and then opt.step()."
)

NO_GRAPH = (
    "The losses have no gradient: loss_fn ran under torch.no_grad(), its result was detached by .detach(), .item() or "
    "numpy, or no parameter of the model has requires_grad=True. Return the losses as the model computes them."
)

AGAIN = "backward through the graph a second time"  # torch's message

WITHIN_LOSS_FN = (
    "loss_fn must not call backward itself, and what depends on the weights must be computed inside it, not before "
    "opt.backward. retain_graph=True would make the gradient wrong."
)

COMPILED = "_torchdynamo_orig_callable"  # an attribute of every function that torch.compile returns

TOO_FEW_FOR_BATCHNORM = "Expected more than 1 value per channel"  # torch's message for a single sample

MIN_BATCH = (
    "BatchNorm cannot train on one sample. Let the sampler join such a batch to its neighbour: "
    "SelectiveBatchSampler(..., min_batch=2). If the method splits the batch, as SAM(m=...) and SAM(ascent=...) do, "
    "make each part two samples or more."
)


class Source:
    """The passes of one step. Every source has :meth:`gradient`; only some have per-sample losses.

    Arguments:
        context: what all steps of the optimizer share.
        recorder: keeps what the passes return.
        replay: whether all passes draw the same random numbers.
    """

    result: Callable[[], Any]  # what the caller of the optimizer gets, asked for when the method has finished

    scale: Tensor | float = 1.0  # the factor that the last backward was scaled by
    displacement: Displacement | None = None  # where the weights were last moved to
    compiled = False  # whether the user's function is compiled: its graph may have recorded the weights' addresses

    def __init__(self, context: StepContext, recorder: Recorder, *, replay: bool) -> None:
        self.recorder = recorder
        self.journal, self.undo = new_journal(context.parameters.kinds)
        self._parameters = context.parameters
        self._guard = context.guard
        self._sync = context.sync
        self._replay = Replay() if replay else None

    def begin(self) -> None:
        """Record the state before the first pass and how to restore it, and set the gradients aside."""
        parameters = self._parameters
        if parameters.lazy:
            self._make_lazy_modules()  # first, because their buffers are among those to be restored
        self._guard.begin(parameters.modules, self.journal)
        self.slots = GradientSlots(parameters.params, parameters.foreign, self.journal)

    def gradient(self, rows: Tensor | None = None, *, weighted: bool = True) -> Vector:
        """Forward and backward, of all rows or some: one entry per trained parameter."""
        raise NotImplementedError

    def forward(self, rows: Tensor | None = None, *, grad: bool = True) -> Tensor:  # noqa: ARG002
        """Per-sample losses at the current weights."""
        raise RuntimeError(NO_LOSSES)

    def backward(self, losses: Tensor, rows: Tensor | None = None, *, weighted: bool = True) -> Vector:  # noqa: ARG002
        """Gradient of the weighted mean of losses."""
        raise RuntimeError(NO_LOSSES)

    def predict(self, buffers: Sequence[Tensor]) -> Any:  # noqa: ARG002
        """Outputs in evaluation mode with these buffers, without gradient."""
        raise RuntimeError(NO_LOSSES)

    def count(self) -> int:
        """The number of samples; before the first pass, taken from the index, the weights or the batch."""
        raise RuntimeError(NO_LOSSES)

    @property
    def shifted(self) -> bool:
        """Whether the weights are somewhere else than at ``w``."""
        return self.displacement is not None and self.displacement.active

    def _make_lazy_modules(self) -> None:
        """Let lazy modules create their parameters, if this takes a forward of its own."""

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...], *, grad: bool) -> Any:
        """Call the user's function. If it raises, the journal undoes its side effects."""
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(grad)
        try:
            if self._replay is None:
                result = function(*arguments)
            else:
                result = self._replay.call(function, arguments, self._parameters.params, self.journal)
        except ValueError as error:
            if TOO_FEW_FOR_BATCHNORM in str(error):
                error.add_note(MIN_BATCH)
            raise
        torch._C._set_grad_enabled(before)
        return result

    def _collect(self) -> Vector:
        """The gradient that a pass left behind; the slots are empty afterwards."""
        gradient = self.slots.collect(views=self._sync.views)
        if self._sync.active:
            self._sync.after_backward(self._parameters.params, gradient)
        return gradient


class SampleSource(Source):
    """A loss function that returns the loss of each sample, and the batch that it is called with.

    Arguments:
        context: as for :class:`Source`.
        loss_fn: the per-sample losses of a batch, or the losses and the model's outputs.
        batch: the arguments of ``loss_fn``.
        index: dataset index of each sample, or None.
        weight: factor of each sample's loss, or None.
        backward: how a scalar loss is back-propagated.
        total: whether the gradient is that of the sum of the losses, not of their mean.
        replay: as for :class:`Source`.
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
        replay: bool,
    ) -> None:
        super().__init__(context, Recorder(index), replay=replay)
        self.result = self.recorder.feedback
        self._total = total
        self._loss_fn = loss_fn
        self._batch = batch
        self._weight = weight
        self._backward = backward
        self.compiled = hasattr(loss_fn, COMPILED)

    def gradient(self, rows: Tensor | None = None, *, weighted: bool = True) -> Vector:
        """Forward and backward, of all rows or some."""
        return self.backward(self.forward(rows), rows, weighted=weighted)

    def forward(self, rows: Tensor | None = None, *, grad: bool = True) -> Tensor:
        """Per-sample losses at the current weights, of all rows or some; ``grad=False`` builds no graph."""
        shifted, recorder, weight = self.shifted, self.recorder, self._weight
        self._guard.before_pass(training=grad, shifted=shifted)
        batch = self._batch if rows is None else select_rows(self._batch, rows, self.count())
        result = self._call(self._loss_fn, batch, grad=grad)
        column = self.displacement.measures if shifted and self.displacement is not None else "loss"
        losses = recorder.record(result, rows, column, shifted=shifted)
        if weight is not None and weight.shape != (recorder.n,):
            raise ValueError(
                f"weight has shape {tuple(weight.shape)} for {recorder.n} samples. Give one number per sample: "
                f"shape ({recorder.n},)."
            )
        return losses

    def backward(self, losses: Tensor, rows: Tensor | None = None, *, weighted: bool = True) -> Vector:
        """Gradient of the (weighted) mean of ``losses``, one entry per parameter.

        For the sum, the mean over any rows counts for all samples. That factor is a part of :attr:`scale`, so what a
        method remembers does not depend on the batch size.
        """
        if not losses.requires_grad:
            raise RuntimeError(NO_GRAPH)
        n = losses.shape[0]
        self.scale = factor = float(self.count()) if self._total else 1.0
        share = torch.full_like(losses, factor / n)  # its own memory: autograd may return this tensor as a .grad
        if self._weight is not None and weighted:
            weight = self._weight if rows is None else self._weight[rows.to(self._weight.device)]
            share *= weight.to(share.device, share.dtype)
        self.recorder.samples_backward += n
        if self._sync.active:
            self._sync.before_backward()
        try:
            if self._backward is Tensor.backward:
                torch.autograd.backward(losses, share)  # no graph nodes for the product and the sum
            else:
                mean = (losses * share).sum()  # not their product @, which autocast would compute in half precision
                mean.register_hook(self._keep_scale)  # type: ignore[no-untyped-call]
                self._backward(mean)
        except RuntimeError as error:
            if AGAIN in str(error):
                error.add_note(WITHIN_LOSS_FN)
            raise
        return self._collect()

    def predict(self, buffers: Sequence[Tensor]) -> Any:
        """Outputs in evaluation mode with these buffers, without gradient; the next pass finds the old buffers."""
        self._guard.before_pass(training=False, shifted=True)
        for b, value in zip(writable_buffers(self._parameters.model), buffers, strict=True):
            b.copy_(value)
        result = self._in_evaluation_mode(strict=True)
        if not isinstance(result, tuple):
            raise TypeError(NO_OUTPUTS)
        self.recorder.samples_forward += len(result[0])
        return result[1]

    def count(self) -> int:
        """The number of samples; before the first pass, taken from the index, the weights or the batch."""
        if self.recorder.n is None:
            self.recorder.n = samples_in((self._weight,) if self._weight is not None else self._batch)
        return self.recorder.n

    def _in_evaluation_mode(self, *, strict: bool = False) -> Any:
        # A wrapper of torch.compile may have no flag of its own: it shows that of the module inside.
        modules = [m for m in self._parameters.modules if m.__dict__.get("training")]
        training = [m.__dict__ for m in modules]
        switches = map(operator.setitem, training, itertools.repeat("training"), itertools.repeat(True))
        self.journal.append((exhaust, switches))
        self._parameters.model.eval()
        result = self._call(self._loss_fn, self._batch, grad=False)
        if strict and any(m.training for m in modules):
            raise RuntimeError(
                "loss_fn calls model.train(), but this method needs the model's outputs in evaluation mode. Call "
                "model.train() in the loop, before opt.backward, and let loss_fn compute the losses only."
            )
        for flags in training:
            flags["training"] = True
        return result

    def _make_lazy_modules(self) -> None:
        """Run one forward, because lazy modules create their parameters in the first one."""
        self._in_evaluation_mode()
        self._parameters.find_lazy()

    def _keep_scale(self, factor: Tensor) -> None:
        # The gradient that reaches the mean loss is the factor that the user's backward multiplied it by.
        self.scale = factor.detach() * self.scale


class ClosureSource(Source):
    """torch's closure: it runs forward and backward and returns the loss.

    A closure that clears the gradients first replaces the previous ``.grad``; one that does not adds to it, as in
    torch. A :class:`~ausam.optimizer.gradients.ClearDetector` in each slot tells the two apart during the first run.

    Arguments:
        context: as for :class:`Source`.
        closure: the closure.
        scale: its factor on the loss before ``backward``.
        replay: as for :class:`Source`.
    """

    def __init__(self, context: StepContext, closure: Callable[[], Any], *, scale: float, replay: bool) -> None:
        super().__init__(context, Recorder(), replay=replay)
        self.scale = scale
        self.cleared = False  # whether the closure has called the optimizer's zero_grad
        self.compiled = hasattr(closure, COMPILED)
        self._closure = closure
        self._values: list[Any] = []

    def gradient(self, rows: Tensor | None = None, *, weighted: bool = True) -> Vector:  # noqa: ARG002
        """The gradient that one call of the closure leaves behind; the closure weights its samples itself."""
        if rows is not None:
            raise RuntimeError(NO_LOSSES)
        self._guard.before_pass(training=True, shifted=self.shifted)
        if self._sync.active:
            self._sync.before_backward()
        first = not self._values
        detectors = self.slots.detectors(self.journal) if first else []
        value = self._call(self._closure, (), grad=True)
        if first:
            alone = self._sync.group is None
            self.slots.replace([d is not None and d.cleared(alone=alone) for d in detectors], own=self.cleared)
        self._values.append(value)
        for part in tree_leaves(value):
            if isinstance(part, (Tensor, float, int)):
                self.recorder.passes.append(torch.as_tensor(part).detach().float().sum())
        return self._collect()

    def result(self) -> Any:
        """What the closure returned in its first run, at ``w``."""
        return self._values[0] if self._values else None
