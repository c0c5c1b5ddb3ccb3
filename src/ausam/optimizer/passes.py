"""LossEvaluator: runs the passes of one step, through a per-sample loss function or torch's closure.

Around each pass it guards the buffers (buffers.py), keeps the ``.grad`` slots empty (gradients.py) and tells DDP's
bookkeeping what was reached (distributed.py). A Recorder keeps what the passes returned.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ausam.common.rows import samples_in, select_rows
from ausam.common.tensors import Vector
from ausam.feedback import Feedback
from ausam.optimizer.buffers import writable_buffers
from ausam.optimizer.displacement import Displacement, Measured
from ausam.optimizer.errors import (
    CHANGED_INPUT,
    NO_BACKWARD,
    NO_GRAPH,
    NO_LOSSES,
    NO_OUTPUTS,
    UNCHANGED,
    WHOLE_BATCH,
    add_note,
    losses_and_outputs,
    per_sample,
)
from ausam.optimizer.gradients import GradientSlots
from ausam.optimizer.undo import Undo

if TYPE_CHECKING:
    from ausam.optimizer.step import StepContext

LossFn = Callable[..., Any]

COMPILED = "_torchdynamo_orig_callable"  # an attribute of every function that torch.compile returns


class LossEvaluator:
    """The passes of one step. Each kind has :meth:`gradient`; only one has per-sample losses.

    Arguments:
        context: what all steps of the optimizer share.
        function: the user's loss function or closure.
        index: dataset index of each sample, or None.
        replay: whether all passes draw the same random numbers.
    """

    result: Callable[[], Any]  # what the caller of the optimizer gets when the method has finished

    scale: Tensor | float = 1.0  # the factor that the last backward was scaled by
    displacement: Displacement | None = None  # where the weights were last moved to

    def __init__(
        self, context: StepContext, function: Callable[..., Any], index: Tensor | None = None, *, replay: bool
    ) -> None:
        self.recorder = Recorder(index)
        self.undo = Undo(context.parameters.kinds)
        self.warnings: list[str] = []  # what the user should know of this step
        self._context = context
        self.compiled = hasattr(function, COMPILED)  # its graph may have recorded the weights' addresses
        self._function = function
        self._parameters = context.parameters
        self._guard = context.guard
        self._sync = context.sync
        self._replay = Replay() if replay else None

    def begin(self, *, replace: bool = False) -> None:
        """Record the state before the first pass and how to restore it, and set the gradients aside."""
        parameters = self._parameters
        self._context.pass_index = -1
        if parameters.lazy:
            self._make_lazy_modules()  # first, because their buffers are among those to be restored
        self._guard.begin(parameters.modules, parameters.frozen, self.undo)
        self.slots = GradientSlots(parameters.params, parameters.foreign, self.undo, replace=replace)

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

    def _call(self, arguments: tuple[Any, ...] = (), *, grad: bool = True) -> Any:
        """Call the user's function."""
        self._context.pass_index += 1
        with torch.set_grad_enabled(grad):
            try:
                if self._replay is None:
                    return self._function(*arguments)
                return self._replay.call(self._function, arguments, self._parameters.params)
            except ValueError as error:
                add_note(error)
                raise

    def _collect(self) -> Vector:
        """The gradient that a pass left behind; the slots are empty afterwards."""
        gradient = self.slots.collect(views=self._sync.views)
        return self._sync.after_backward(self._parameters.params, gradient) if self._sync.active else gradient

    def _check_moved(self, before: Tensor, after: Tensor) -> None:
        """See, once, that moving the weights changes a loss: it does not if the graph was built before the step."""
        known = before.isfinite() & after.isfinite()
        self._context.seen_to_move = bool(known.any())
        same = self._context.seen_to_move and torch.equal(before[known], after[known])
        if same and self.displacement is not None and self.displacement.moved():
            self.warnings.append(UNCHANGED)


class PerSampleLoss(LossEvaluator):
    """A loss function that returns the loss of each sample, and the batch that it is called with.

    Arguments:
        context: as for :class:`LossEvaluator`.
        loss_fn: the per-sample losses of a batch, or the losses and the model's outputs.
        batch: the arguments of ``loss_fn``.
        index: dataset index of each sample, or None.
        weight: factor of each sample's loss, or None.
        backward: how a scalar loss is back-propagated.
        total: whether the gradient is that of the sum of the losses, not of their mean.
        whole: whether the losses depend on one another, so that the batch must not be cut.
        replay: as for :class:`LossEvaluator`.
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
        self.result = self.recorder.feedback
        self._total = total
        self._whole = whole
        self._versions = _versions(batch)
        self._batch = batch
        self._weight = weight
        self._backward = backward

    def gradient(self, rows: Tensor | None = None, *, weighted: bool = True) -> Vector:
        """Forward and backward, of all rows or some."""
        return self.backward(self.forward(rows), rows, weighted=weighted)

    def forward(self, rows: Tensor | None = None, *, grad: bool = True) -> Tensor:
        """Per-sample losses at the current weights, of all rows or some; ``grad=False`` builds no graph."""
        shifted, recorder, weight = self.shifted, self.recorder, self._weight
        if self._whole and rows is not None:
            raise ValueError(WHOLE_BATCH)
        if self._versions and recorder.passes and _versions(self._batch) != self._versions:
            self.warnings.append(CHANGED_INPUT)
        self._guard.before_pass(training=grad, shifted=shifted)
        batch = self._batch if rows is None else select_rows(self._batch, rows, self.count())
        try:
            result = self._call(batch, grad=grad)
        except (RuntimeError, ValueError, IndexError) as error:
            if rows is not None:
                error.add_note(
                    f"This method called loss_fn with {len(rows)} of the {self.count()} rows of the batch. Let loss_fn "
                    "capture what is not per sample, such as a graph, or use a method that keeps the batch whole."
                )
            raise
        column = self.displacement.measures if shifted and self.displacement is not None else "loss"
        losses = recorder.record(result, rows, column, shifted=shifted)
        if column == "perturbed" and not self._context.seen_to_move and not losses.is_meta:
            self._check_moved(recorder.column("loss"), recorder.column("perturbed"))
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
            add_note(error)
            raise
        return self._collect()

    def _keep_scale(self, factor: Tensor) -> None:
        # The gradient that reaches the mean loss is the factor that the user's backward multiplied it by.
        self.scale = factor.detach() * self.scale

    def predict(self, buffers: Sequence[Tensor]) -> Any:
        """Outputs in evaluation mode with these buffers, without gradient; the next pass finds the old buffers."""
        self._guard.before_pass(training=False, shifted=True)
        for b, value in zip(writable_buffers(self._parameters.model), buffers, strict=True):
            b.copy_(value)
        result = self._evaluate(strict=True)
        if not isinstance(result, tuple):
            raise TypeError(NO_OUTPUTS)
        self.recorder.samples_forward += len(result[0])
        return result[1]

    def count(self) -> int:
        """The number of samples; before the first pass, taken from the index, the weights or the batch."""
        if self.recorder.n is None:
            self.recorder.n = samples_in((self._weight,) if self._weight is not None else self._batch)
        return self.recorder.n

    def _make_lazy_modules(self) -> None:
        """Run one forward, because lazy modules create their parameters in the first one."""
        self._evaluate()
        self._parameters.find_lazy()

    def _evaluate(self, *, strict: bool = False) -> Any:
        """What loss_fn returns with the model in evaluation mode; ``strict``: it must not leave that mode."""
        # A wrapper of torch.compile may have no flag of its own: it shows that of the module inside.
        modules = [m for m in self._parameters.modules if vars(m).get("training")]

        def restore() -> None:
            for m in modules:
                vars(m)["training"] = True

        self.undo.append(restore)
        self._parameters.model.eval()
        result = self._call(self._batch, grad=False)
        if strict and any(m.training for m in modules):
            raise RuntimeError(
                "loss_fn calls model.train(), but this method needs the model's outputs in evaluation mode. Call "
                "model.train() in the loop, before opt.backward, and let loss_fn compute the losses only."
            )
        restore()
        return result


class ClosureLoss(LossEvaluator):
    """torch's closure: it runs forward and backward and returns the loss.

    Arguments:
        context: as for :class:`LossEvaluator`.
        closure: the closure.
        scale: its factor on the loss before ``backward``.
        replay: as for :class:`LossEvaluator`.
    """

    def __init__(self, context: StepContext, closure: Callable[[], Any], *, scale: float = 1.0, replay: bool) -> None:
        super().__init__(context, closure, replay=replay)
        self.scale = scale
        self._values: list[Any] = []

    def gradient(self, rows: Tensor | None = None, *, weighted: bool = True) -> Vector:  # noqa: ARG002
        """The gradient that one call of the closure leaves behind; the closure weights its samples itself."""
        if rows is not None:
            raise RuntimeError(NO_LOSSES)
        self._guard.before_pass(training=True, shifted=self.shifted)
        if self._sync.active:
            self._sync.before_backward()
        value = self._call()
        self._values.append(value)
        passes, parts = self.recorder.passes, tree_leaves(value)
        passes.extend(torch.as_tensor(x).detach().float().sum() for x in parts if isinstance(x, (Tensor, float, int)))
        gradient = self._collect()
        if any(isinstance(x, Tensor) and x.requires_grad for x in parts) and all(g is None for g in gradient):
            self.warnings.append(NO_BACKWARD)
        if self.shifted and len(self._values) > 1 and passes and not self._context.seen_to_move:
            self._check_moved(passes[0], passes[-1])
        return gradient

    def result(self) -> Any:
        """What the closure returned in its first run, at ``w``."""
        return self._values[0] if self._values else None


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


def _versions(batch: tuple[Any, ...]) -> list[int]:
    """Changes if a tensor among the arguments was written to."""
    return [x._version for x in batch if isinstance(x, Tensor) and not x.is_inference()]


class Replay:
    """Draws random numbers once per step: later passes reuse the first pass's, hence its dropout masks.

    These are torch's, and those of Python's ``random`` and of ``numpy.random``.
    """

    def __init__(self) -> None:
        self._first: RandomStates | None = None

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], on: Iterable[Tensor]) -> Any:
        """Call the function with the first call's random numbers; the generators end where that call left them."""
        now = _random_states({t.device for t in on})
        if self._first is None:
            self._first = now
            return function(*arguments)
        try:
            _set_random_states(self._first)
            return function(*arguments)
        finally:
            _set_random_states(now)


RandomStates = tuple[dict[torch.device, Tensor], Any, Any]


def _random_states(devices: set[torch.device]) -> RandomStates:
    """The state of torch's own generators, of the CPU and of these devices, of Python's and of NumPy's."""
    on = {d: torch.get_device_module(d).get_rng_state(d) for d in devices if d.type not in ("cpu", "meta")}
    return {torch.device("cpu"): torch.get_rng_state(), **on}, random.getstate(), np.random.get_state()  # noqa: NPY002


def _set_random_states(states: RandomStates) -> None:
    of_torch, of_python, of_numpy = states
    random.setstate(of_python)
    np.random.set_state(of_numpy)  # noqa: NPY002
    for device, state in of_torch.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)
