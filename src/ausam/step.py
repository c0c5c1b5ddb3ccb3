"""Step: the whole vocabulary of a method.

A method evaluates losses and gradients at the weights or elsewhere, and returns one gradient. What all methods need
alike is behind these words, each in a file of its own: moving the weights (displacement), BatchNorm (buffers), the
``.grad`` slots (gradients), DDP (distributed), what a method remembers (memory).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_map

from ausam import distributed
from ausam.buffers import BufferGuard, writable
from ausam.displacement import Displacement, Swappable
from ausam.distributed import GradientSync
from ausam.feedback import Feedback
from ausam.gradients import GradientSlots
from ausam.inventory import Inventory
from ausam.journal import Action, Journal
from ausam.losses import per_sample
from ausam.memory import Memory
from ausam.random import Replay, generator
from ausam.tensors import Vector, ascent_, reach, sharded, size

LossFn = Callable[..., Any]
Measured = Literal["loss", "perturbed"]

NO_OUTPUTS = (
    "This method needs the model's outputs, but loss_fn returned the losses alone. Return both: "
    'z = model(x); return F.cross_entropy(z, y, reduction="none"), z.'
)


TOO_FEW_FOR_BATCHNORM = "Expected more than 1 value per channel"  # what torch says of a single sample

MIN_BATCH = (
    "BatchNorm cannot train on one sample. Let the sampler join such a batch to its neighbour: "
    "SelectiveBatchSampler(..., min_batch=2)."
)


class Method(Protocol):
    """What a method is: a declaration of what it measures, and one function."""

    @property
    def sharpness(self) -> str:
        """Whether it evaluates the loss at perturbed weights: "always", "sometimes" or "never"."""

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch."""

    def gradient(self, step: Step) -> Vector:
        """The gradient that the base optimizer shall use, one entry per parameter."""


class Step:
    """One batch in the hands of a method.

    Arguments:
        loss_fn: the per-sample losses of a batch, or the losses and the model's outputs.
        batch: what ``loss_fn`` takes.
        index: dataset index of each sample, or None.
        weight: factor of each sample's loss, or None.
        backward: how a scalar loss is back-propagated.
        inventory, guard, sync, swappable: the optimizer's; they outlive the step.
        memory: what the method remembers.
        number: optimizer steps taken so far.
        seed: of what the method draws.
        replay: whether all passes draw the same random numbers.
    """

    def __init__(
        self,
        loss_fn: LossFn,
        batch: tuple[Any, ...] = (),
        index: Tensor | None = None,
        weight: Tensor | None = None,
        backward: Callable[[Tensor], Any] = Tensor.backward,
        *,
        inventory: Inventory,
        guard: BufferGuard,
        sync: GradientSync,
        swappable: Swappable,
        memory: Memory,
        number: int,
        seed: int,
        replay: bool,
    ) -> None:
        self._loss_fn = loss_fn
        self._batch = batch
        self._weight = weight
        self._backward = backward
        self._inventory = inventory
        self._guard = guard
        self._sync = sync
        self._swappable = swappable
        self._seed = seed
        self._replay = Replay() if replay else None
        self._memory = memory
        self._displacement: Displacement | None = None
        self._measures: Measured = "loss"
        self._measured: dict[Measured, Tensor] = {}
        self._totals: list[Tensor] = []  # of the losses of each pass: not finite if one of them is not
        self._outputs: Any = None
        self._outputs_at_w: Any = None  # of all rows, detached; those of the first pass if none is at w
        self._n = None if index is None else len(index)
        self._written: list[tuple[Tensor, tuple[Tensor, ...], Tensor]] = []
        self.journal = Journal()
        self.index = index
        self.number = number
        self.scale: Tensor | float = 1.0
        self.samples_forward = 0
        self.samples_backward = 0

    def begin(self) -> None:
        """Look at what is there and write down how to restore it. Nothing has moved before."""
        inventory, journal = self._inventory, self.journal
        inventory.refresh()
        self.params = inventory.trained()
        self.group = self._sync.group(self.params)
        self._memory = self._memory.of(self.params, inventory)
        self.state = dict(self._memory.values)
        journal.note(torch._C._set_grad_enabled, torch.is_grad_enabled())
        self._sync.note(journal)
        self._slots = GradientSlots(self.params, inventory.foreign(), journal)
        self._guard.begin(inventory.modules, journal)
        self._slots.clear()
        if inventory.lazy:
            self._make_lazy_modules()

    # -- what the method knows -----------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The model's name for each of ``params``."""
        return self._inventory.names(self.params)

    def radius(self, rho: float) -> float | list[float]:
        """``rho``, or one radius per parameter if a parameter group carries a ``rho`` of its own."""
        radii = self._inventory.radii(rho)
        return rho if radii is None else radii

    def rng(self, stream: int = 0) -> Generator:
        """A new generator for this step, the same in every process; another stream draws other numbers."""
        return generator(self._seed, self.number, stream)

    @property
    def momentum(self) -> Vector:
        """The base's first moment (SGD's momentum_buffer, Adam's exp_avg); None for a parameter that has none yet."""
        return self._inventory.momentum(self.params)

    @property
    def buffers(self) -> list[Tensor]:
        """The model's floating-point buffers, e.g. BatchNorm's statistics, as they are now; no views that are fixed."""
        return [b for b in self._inventory.model.buffers() if writable(b) and b.is_floating_point()]

    @property
    def outputs(self) -> Any:
        """What ``loss_fn`` returned beside the losses in the last forward."""
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

    def agreed(self, value: Tensor) -> Tensor:
        """The mean of a scalar over the processes that train the model: for decisions that all must share."""
        return value if self.group is None else distributed.mean(value, self.group)

    def write(self, table: Tensor, place: tuple[Tensor, ...], values: Tensor) -> None:
        """``table[place] = values`` in a table that is too large to copy; taken back if the step comes to nothing."""
        before = table[place]
        self._written.append((table, place, before))
        self.journal.note(Tensor.index_put_, table, place, before)
        table.index_put_(place, values.to(table.dtype))

    # -- evaluating ----------------------------------------------------------------------------------------------

    def forward(self, rows: Tensor | None = None, *, grad: bool = True) -> Tensor:
        """Per-sample losses at the present weights, of all rows or some; ``grad=False`` only looks."""
        self._guard.before_pass(training=grad, shifted=self._away)
        batch = self._batch if rows is None else tree_map(lambda x: self._select(x, rows), self._batch)
        result = self._call(self._loss_fn, batch, grad=grad)
        losses, self._outputs = result if isinstance(result, tuple) else (result, None)
        losses = per_sample(losses, self._n if rows is None else len(rows))
        n = losses.shape[0]
        if self._n is None:
            self._n = n
        if self._weight is not None and len(self._weight) != self._n:
            raise ValueError(f"weight has {len(self._weight)} entries for {self._n} samples. Give one per sample.")
        self.samples_forward += n
        self._record(losses.detach(), rows)
        if not grad:
            self._totals.append(losses.detach().sum())
        if self._outputs is not None and rows is None and (self._outputs_at_w is None or not self._away):
            self._outputs_at_w = tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, self._outputs)
        return losses

    def backward(self, losses: Tensor, rows: Tensor | None = None) -> Vector:
        """Gradient of the (weighted) mean of ``losses``, one entry per parameter."""
        if self._weight is not None:
            weight = self._weight if rows is None else self._weight[rows.to(self._weight.device)]
            losses = losses * weight.to(losses.device, losses.dtype)
        self.samples_backward += losses.shape[0]
        self._sync.before_backward()
        mean = losses.mean()
        self._totals.append(mean.detach())
        if self._backward is not Tensor.backward and mean.requires_grad:
            mean.register_hook(self._note_scale)  # type: ignore[no-untyped-call]
        self._backward(mean)
        return self._collect()

    def gradient(self, rows: Tensor | None = None, *, sync: bool = True) -> Vector:
        """Forward and backward; with ``sync=False`` processes do not average the result."""
        paused = None if sync else self._sync.paused()
        if paused is None:
            return self.backward(self.forward(rows), rows)
        with paused:
            return self.backward(self.forward(rows), rows)

    def predict(self, values: Vector, buffers: Sequence[Tensor]) -> Any:
        """The outputs in evaluation mode at other weights and buffers (a teacher's), without gradient or trace."""
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
        """The weights at ``w + e`` inside, at ``w`` bit for bit afterwards; the memory of ``e`` is used up.

        ``measures`` says which column of the feedback the losses inside belong to.
        """
        return self._displaced(e, measures, relative=True)

    def ascended(self, g: Vector, rho: float) -> Displacement:
        """The weights at ``w + rho g / |g|`` inside, as ``shifted(ascent(g, rho))``; the memory of ``g`` is used up."""
        radius = self.radius(rho)
        if isinstance(radius, list) or len({t.device for t in g if t is not None}) != 1:
            return self.shifted(ascent_(g, radius))
        return self._displaced(g, "perturbed", relative=True, times=reach(g, radius))

    def at(self, values: Vector) -> Displacement:
        """The weights at ``values`` inside, at ``w`` bit for bit afterwards."""
        return self._displaced(values, "perturbed", relative=False)

    def _displaced(
        self, values: Vector, measures: Measured, *, relative: bool, times: Tensor | None = None
    ) -> Displacement:
        if self._away:
            raise RuntimeError(
                "The weights are shifted already. Leave the first `with step.shifted(...)` before the next."
            )
        self._measures = measures
        self._displacement = Displacement(
            self.params,
            values,
            self.journal,
            self._inventory.modules,
            relative=relative,
            swap=self._swappable(self.params),
            times=times,
        )
        return self._displacement

    @property
    def _away(self) -> bool:
        return self._displacement is not None and self._displacement.active

    # -- the end (called by the optimizer) -----------------------------------------------------------------------

    def settle(self) -> None:
        """Take back what the last pass did to the buffers, if it was not the one that may move them."""
        self._guard.settle()

    def size(self, gradient: Vector) -> Tensor:
        """A scalar that is finite if this gradient and all losses of the step are; nothing is read."""
        return size(gradient, *self._totals)

    def rollback(self) -> None:
        """Buffers and tables as they were before the step: for one that turned out not to be finite."""
        self._guard.rollback()
        for table, place, before in reversed(self._written):
            table.index_put_(place, before)

    def deposit(self, gradient: Vector) -> list[Action]:
        """What adds the gradient to ``.grad``, as loss.backward() would; what earlier calls left is averaged here."""
        if self.group is None:
            return self._slots.deposit(gradient, add=self._adds)
        flags = self._sync.settled(remembers=bool(self.state))
        if not self._sync.owes:
            return [*self._slots.deposit(gradient, add=self._adds), flags]
        total = self._slots.total(gradient, add=self._adds)
        return [self._slots.put(distributed.average_gradients(self._slots.all, total, self.group)), flags]

    @property
    def _adds(self) -> bool:
        """Whether the gradient is added to what ``.grad`` held before."""
        return True

    def remembered(self) -> Memory:
        """The method's memory after this step."""
        return self._memory.renewed(self.state)

    def result(self) -> Any:
        """What the caller gets: the feedback of the samples."""
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
        """A look at the batch, because lazy modules make their parameters in the first forward."""
        self._evaluate()
        self._inventory.find_lazy()

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...], *, grad: bool) -> Any:
        """Call the user's function. What it leaves behind if it raises, the journal takes back."""
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

    def _select(self, x: Any, rows: Tensor) -> Any:
        if isinstance(x, Tensor) and x.dim() > 0 and len(x) == self._n:
            return x[rows.to(x.device)]
        return x

    def _note_scale(self, factor: Tensor) -> None:
        # What reaches the mean loss in the backward pass is the factor it was multiplied with on the way.
        self.scale = factor.detach()

    def _collect(self) -> Vector:
        gradient = self._slots.collect(views=self._sync.views)
        self._sync.after_backward(self.params, gradient)
        if gradient and sharded(self.params[0]) and all(g is None for g in gradient):
            raise RuntimeError(
                "FSDP kept the gradients to itself, as set_requires_gradient_sync(False) asks it to, so the method has "
                "none. Leave it True: opt.backward adds up the averaged gradients of several calls itself."
            )
        return gradient
