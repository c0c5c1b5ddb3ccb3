"""Step: everything that a method can do with one batch.

A method evaluates losses and gradients at the weights or elsewhere, and returns one gradient. The shared machinery is
in one file per topic: moving the weights (displacement), BatchNorm (buffers), the ``.grad`` slots (gradients), DDP
(distributed), the state that a method keeps (memory).
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from ausam.common.random import generator
from ausam.common.ranks import mean_over_ranks, min_over_ranks
from ausam.common.tensors import Vector, ascent_, nonfinite, sharded
from ausam.feedback import Feedback
from ausam.optimizer import autograd
from ausam.optimizer.buffers import BufferGuard, writable
from ausam.optimizer.displacement import Displacement, Swappable
from ausam.optimizer.gradients import GradientSlots
from ausam.optimizer.journal import Action, Journal
from ausam.optimizer.losses import losses_and_outputs, per_sample, samples_in
from ausam.optimizer.memory import Memory
from ausam.optimizer.parameters import Inventory
from ausam.optimizer.replay import Replay
from ausam.optimizer.sync import GradientSync, average_gradients

LossFn = Callable[..., Any]
Measured = Literal["loss", "perturbed"]

NO_OUTPUTS = (
    "This method needs the model's outputs, but loss_fn returned only the losses. Return both: "
    'z = model(x); return F.cross_entropy(z, y, reduction="none"), z.'
)


TOO_FEW_FOR_BATCHNORM = "Expected more than 1 value per channel"  # torch's message for a single sample

MIN_BATCH = (
    "BatchNorm cannot train on one sample. Let the sampler join such a batch to its neighbour: "
    "SelectiveBatchSampler(..., min_batch=2). If the method splits the batch, as SAM(m=...) and SAM(ascent=...) do, "
    "make each part two samples or more."
)


class Method(Protocol):
    """The interface of a method: two declarations and one function."""

    @property
    def sharpness(self) -> str:
        """Whether it evaluates the loss at perturbed weights: "always", "sometimes" or "never"."""

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch."""

    def gradient(self, step: Step) -> Vector:
        """The gradient for the base optimizer, one entry per parameter."""


class Surroundings:
    """What the steps of an optimizer share: how its model is read, moved, guarded and synchronised.

    Arguments:
        model: the model being trained.
        base: the optimizer whose parameters are trained.
        sync_perturbation: average the perturbation's gradient over processes too.
    """

    def __init__(self, model: nn.Module, base: Optimizer, sync_perturbation: bool) -> None:
        self.inventory = Inventory(model, base)
        self.guard = BufferGuard()
        self.sync = GradientSync(model, sync_perturbation)
        self.swappable = Swappable(model)


class Step:
    """One batch, as a method sees it.

    Arguments:
        loss_fn: the per-sample losses of a batch, or the losses and the model's outputs.
        batch: the arguments of ``loss_fn``.
        index: dataset index of each sample, or None.
        weight: factor of each sample's loss, or None.
        backward: how a scalar loss is back-propagated.
        surroundings: what all steps of the optimizer share.
        memory: the method's state from earlier steps.
        number: optimizer steps taken so far.
        seed: for the method's random numbers.
        replay: whether all passes draw the same random numbers.
    """

    scale: Tensor | float = 1.0
    samples_forward = 0
    samples_backward = 0
    _displacement: Displacement | None = None
    _measures: Measured = "loss"
    _outputs: Any = None
    _outputs_at_w: Any = None  # for all rows, detached; from the first pass if none is at w
    _outputs_in_parts = False

    def __init__(
        self,
        loss_fn: LossFn,
        batch: tuple[Any, ...] = (),
        index: Tensor | None = None,
        weight: Tensor | None = None,
        backward: Callable[[Tensor], Any] = Tensor.backward,
        *,
        surroundings: Surroundings,
        memory: Memory,
        number: int,
        seed: int,
        replay: bool,
    ) -> None:
        self._loss_fn = loss_fn
        self._batch = batch
        self._weight = weight
        self._backward = backward
        self._inventory = surroundings.inventory
        self._guard = surroundings.guard
        self._sync = surroundings.sync
        self._swappable = surroundings.swappable
        self._seed = seed
        self._replay = Replay() if replay else None
        self._memory = memory
        self._measured: dict[Measured, Tensor] = {}
        self._looked_at: list[Tensor] = []  # the losses of each pass, to see whether they are finite
        self._n = None if index is None else len(index)
        self._written: list[tuple[Tensor, tuple[Tensor, ...], Tensor]] = []
        self.journal = Journal()
        self.index = index
        self.number = number

    def begin(self) -> None:
        """Record the current state and how to restore it, before anything changes."""
        inventory, journal = self._inventory, self.journal
        inventory.refresh()
        self.params = inventory.params
        self.group = self._sync.group(self.params)
        self._memory = self._memory.of(self.params, inventory)
        self.state = dict(self._memory.values)
        journal.note(torch._C._set_grad_enabled, torch.is_grad_enabled())
        self._sync.note(journal)
        if inventory.lazy:
            self._make_lazy_modules()  # first, because their buffers are among those to be restored
        self._slots = GradientSlots(self.params, inventory.foreign, journal)
        self._guard.begin(inventory.modules, journal)
        self._slots.set_aside()

    # -- what the method knows -----------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The model's name for each of ``params``."""
        return self._inventory.names(self.params)

    def radius(self, rho: float) -> float | list[float]:
        """``rho``, or the parameter groups' own value; one radius per parameter if these differ."""
        radii = self._inventory.radii(rho)
        if radii is None:
            return rho
        # If all groups share one radius (a schedule), a scalar is as fast as the method's own and rounds the same.
        return radii[0] if len(set(radii)) == 1 else radii

    def rng(self, stream: int = 0) -> Generator:
        """A new generator for this step, the same in every process; each stream gives different numbers."""
        return generator(self._seed, self.number, stream)

    @property
    def momentum(self) -> Vector:
        """The base's first moment (SGD's momentum_buffer, Adam's exp_avg); None for a parameter that has none yet."""
        return self._inventory.momentum(self.params)

    @property
    def buffers(self) -> list[Tensor]:
        """The model's floating-point buffers now, e.g. BatchNorm's statistics; read-only views are left out."""
        return [b for b in self._inventory.model.buffers() if writable(b) and b.is_floating_point()]

    @property
    def outputs(self) -> Any:
        """What ``loss_fn`` returned alongside the losses in the last forward."""
        if self._outputs is None:
            raise TypeError(NO_OUTPUTS)
        return self._outputs

    @property
    def loss(self) -> Tensor:
        """Loss of each sample at ``w``; NaN where it was not evaluated."""
        return self._column("loss")

    @property
    def perturbed(self) -> Tensor:
        """Loss of each sample at perturbed weights; NaN where it was not evaluated."""
        return self._column("perturbed")

    @property
    def count(self) -> int:
        """The number of samples; before the first pass, taken from the index, the weights or the batch."""
        if self._n is None:
            self._n = samples_in((self._weight,) if self._weight is not None else self._batch)
        return self._n

    def least(self, value: int) -> int:
        """The smallest value over the training processes: for numbers of passes, on which all must agree."""
        return value if self.group is None else min_over_ranks(value, self.group)

    def agreed(self, value: Tensor) -> Tensor:
        """The mean of a scalar over the training processes: for decisions on which all must agree."""
        return value if self.group is None else mean_over_ranks(value, self.group)

    def write(self, table: Tensor, place: tuple[Tensor, ...], values: Tensor) -> None:
        """``table[place] = values`` in a table that is too large to copy; undone if the step fails."""
        before = table[place]
        self._written.append((table, place, before))
        self.journal.note_first(Tensor.index_put_, table, place, before)  # of two writes, the later is undone first
        table.index_put_(place, values.to(table.dtype))

    # -- evaluating ----------------------------------------------------------------------------------------------

    def forward(self, rows: Tensor | None = None, *, grad: bool = True) -> Tensor:
        """Per-sample losses at the current weights, of all rows or some; ``grad=False`` builds no graph."""
        self._guard.before_pass(training=grad, shifted=self._away)
        batch = self._batch if rows is None else tree_map(lambda x: self._select(x, rows), self._batch)
        result = self._call(self._loss_fn, batch, grad=grad)
        losses, self._outputs = losses_and_outputs(result)
        losses = per_sample(losses, self._n if rows is None else len(rows))
        n = losses.shape[0]
        if self._n is None:
            self._n = n
        if self._weight is not None and self._weight.shape != (self._n,):
            raise ValueError(
                f"weight has shape {tuple(self._weight.shape)} for {self._n} samples. Give one number per sample: "
                f"shape ({self._n},)."
            )
        self.samples_forward += n
        values = losses.data  # unlike detach(), this may be read or written without a trace in the graph
        self._looked_at.append(values)
        self._record(values, rows)
        if self._outputs is not None:
            self._keep_outputs(rows)
        return losses

    def backward(self, losses: Tensor, rows: Tensor | None = None) -> Vector:
        """Gradient of the (weighted) mean of ``losses``, one entry per parameter."""
        n = losses.shape[0]
        share = torch.full_like(losses, 1.0 / n)  # new in each pass: autograd may hand it on as a gradient
        if self._weight is not None:
            weight = self._weight if rows is None else self._weight[rows.to(self._weight.device)]
            share *= weight.to(share.device, share.dtype)
        self.samples_backward += n
        self._sync.before_backward()
        if self._backward is Tensor.backward:
            autograd.backward(losses, share)
        else:
            mean = (losses * share).sum()  # not their product @, which autocast would compute in half precision
            if mean.requires_grad:
                mean.register_hook(self._note_scale)  # type: ignore[no-untyped-call]
            self._backward(mean)
        return self._collect()

    def gradient(self, rows: Tensor | None = None, *, sync: bool = True) -> Vector:
        """Forward and backward; with ``sync=False`` the processes do not average the result."""
        with contextlib.nullcontext() if sync else self.alone():
            return self.backward(self.forward(rows), rows)

    def alone(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which the processes do not average, for a forward and a backward; ``gradient(sync=False)``."""
        return self._sync.paused() or contextlib.nullcontext()

    def predict(self, values: Vector, buffers: Sequence[Tensor]) -> Any:
        """Outputs in evaluation mode at other weights and buffers (a teacher's), without gradient or side effects."""
        self._guard.before_pass(training=False, shifted=True)
        with self.at(values):
            for b, value in zip(self.buffers, buffers, strict=True):
                b.copy_(value)
            result = self._evaluate()
        if not isinstance(result, tuple):
            raise TypeError(NO_OUTPUTS)
        self.samples_forward += len(result[0])
        return result[1]

    # -- moving the weights --------------------------------------------------------------------------------------

    def shifted(self, e: Vector, *, measures: Measured = "perturbed") -> Displacement:
        """Move the weights to ``w + e`` inside the context, then back to ``w`` bit for bit. Overwrites ``e``.

        ``measures`` names the feedback column for losses evaluated inside.
        """
        return self._displaced(e, measures, relative=True)

    def ascended(self, g: Vector, rho: float) -> Displacement:
        """Move the weights to ``w + rho g / |g|``, like ``shifted(ascent(g, rho))``. Overwrites ``g``."""
        return self.shifted(ascent_(g, self.radius(rho)))

    def at(self, values: Vector) -> Displacement:
        """Move the weights to ``values`` inside the context, then back to ``w`` bit for bit."""
        return self._displaced(values, "perturbed", relative=False)

    def _displaced(self, values: Vector, measures: Measured, *, relative: bool) -> Displacement:
        if self._away:
            raise RuntimeError(
                "The weights are already shifted. Leave the first `with step.shifted(...)` before entering another."
            )
        self._measures = measures
        self._displacement = Displacement(
            self.params,
            values,
            self.journal,
            self._inventory.modules,
            relative=relative,
            swap=self._swappable(self.params),
        )
        return self._displacement

    @property
    def _away(self) -> bool:
        return self._displacement is not None and self._displacement.active

    # -- the end (called by the optimizer) -----------------------------------------------------------------------

    def settle(self) -> None:
        """Undo the last pass's changes to the buffers, unless it was the one allowed to change them."""
        self._guard.settle()

    def nonfinite(self, gradient: Vector) -> Tensor:
        """A scalar that is 0 if this gradient and all losses of the step are finite; stays on the device."""
        return nonfinite(gradient, *self._looked_at)

    def rollback(self) -> None:
        """Restore buffers and tables after a step that was not finite."""
        self._guard.rollback()
        for table, place, before in reversed(self._written):
            table.index_put_(place, before)

    def deposit(self, gradient: Vector) -> list[Action]:
        """Actions that add the gradient to ``.grad``, like loss.backward(); averages what earlier calls left."""
        if self.group is None:
            return self._slots.deposit(gradient)
        flags = self._sync.settled(remembers=bool(self.state))
        if not self._sync.owes:
            return [*self._slots.deposit(gradient), flags]
        total = self._slots.total(gradient)
        return [self._slots.put(average_gradients(self._slots.all, total, self.group)), flags]

    def remembered(self) -> Memory:
        """The method's memory after this step."""
        return self._memory.renewed(self.state)

    def result(self) -> Any:
        """The caller's return value: the per-sample feedback."""
        return Feedback(self.index, self.loss, self.perturbed, self._outputs_at_w)

    # -- inner workings ------------------------------------------------------------------------------------------

    def _evaluate(self) -> Any:
        """What ``loss_fn`` returns in evaluation mode, without gradient."""
        training = [m.__dict__ for m in self._inventory.modules if m.training]
        self.journal.note_each(operator.setitem, training, itertools.repeat("training"), itertools.repeat(True))
        self._inventory.model.eval()
        result = self._call(self._loss_fn, self._batch, grad=False)
        for flags in training:
            flags["training"] = True
        return result

    def _make_lazy_modules(self) -> None:
        """Run one forward, because lazy modules create their parameters in the first one."""
        self._evaluate()
        self._inventory.find_lazy()

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...], *, grad: bool) -> Any:
        """Call the user's function. If it raises, the journal undoes its side effects."""
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(grad)
        try:
            if self._replay is None:
                result = function(*arguments)
            else:
                result = self._replay.call(function, arguments, self.params, self.journal)
        except ValueError as error:
            if TOO_FEW_FOR_BATCHNORM in str(error):
                error.add_note(MIN_BATCH)
            raise
        torch._C._set_grad_enabled(before)
        return result

    def _column(self, name: Measured) -> Tensor:
        if name not in self._measured:
            like = next(iter(self._measured.values()), torch.empty(0))
            self._measured[name] = torch.full_like(like, torch.nan)
        return self._measured[name]

    def _record(self, losses: Tensor, rows: Tensor | None) -> None:
        name: Measured = self._measures if self._away else "loss"
        if rows is None:
            self._measured[name] = losses
        else:
            column = self._measured.get(name)
            known = losses.new_full((self._n or 0,), torch.nan) if column is None else column.clone()
            known[rows] = losses
            self._measured[name] = known

    def _keep_outputs(self, rows: Tensor | None) -> None:
        if rows is None:
            if self._outputs_at_w is None or not self._away:
                self._outputs_at_w = tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, self._outputs)
                self._outputs_in_parts = False
        elif not self._away and (self._outputs_at_w is None or self._outputs_in_parts):
            # The method never sees the whole batch at w: assemble the parts that it does see, if they are one tensor.
            z = self._outputs.detach() if isinstance(self._outputs, Tensor) else None
            if z is not None and z.is_floating_point() and len(z) == len(rows):
                if self._outputs_at_w is None:
                    self._outputs_at_w = z.new_full((self._n or 0, *z.shape[1:]), torch.nan)
                    self._outputs_in_parts = True
                self._outputs_at_w[rows.to(z.device)] = z

    def _select(self, x: Any, rows: Tensor) -> Any:
        if isinstance(x, Tensor) and x.dim() > 0 and len(x) == self._n:
            return x[rows.to(x.device)]
        return x

    def _note_scale(self, factor: Tensor) -> None:
        # The gradient that reaches the mean loss is the factor that the user's backward multiplied it by.
        self.scale = factor.detach()

    def _collect(self) -> Vector:
        gradient = self._slots.collect(views=self._sync.views)
        self._sync.after_backward(self.params, gradient)
        if gradient and sharded(self.params[0]) and all(g is None for g in gradient):
            raise RuntimeError(
                "FSDP holds the gradients back because of set_requires_gradient_sync(False), so the method has none. "
                "Leave it True: opt.backward adds up the averaged gradients of several calls itself."
            )
        return gradient
