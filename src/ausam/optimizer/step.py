"""Step: what a method may use.

A method evaluates losses and gradients at the weights or elsewhere, and returns one gradient. Who does the work is in
one file per topic: running the passes and keeping what they return (passes), moving the weights (displacement). The
optimizer begins, commits and undoes the step (sharpness_aware).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from ausam.common.random import generator
from ausam.common.ranks import mean_over_ranks, min_over_ranks
from ausam.common.tensors import Vector, add, ascent_
from ausam.optimizer.buffers import BufferGuard, writable_buffers
from ausam.optimizer.displacement import Displacement, Measured, Swappable
from ausam.optimizer.distributed import choose_sync
from ausam.optimizer.errors import NO_OUTPUTS
from ausam.optimizer.parameters import TrainedParameters
from ausam.optimizer.passes import LossEvaluator
from ausam.optimizer.undo import Action


class Method(Protocol):
    """The interface of a method: two declarations and one function.

    A method that needs the loss or the outputs of each sample, which a closure cannot give, also has
    ``needs_rows = True``. The adapters then ask the user for per-sample losses.
    """

    @property
    def sharpness(self) -> str:
        """Whether it evaluates the loss at perturbed weights: "always", "sometimes" or "never"."""

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch."""

    def gradient(self, step: Step) -> Vector:
        """The gradient for the base optimizer, one entry per parameter."""


class StepContext:
    """What the steps of an optimizer share: how the model is read, moved, guarded and synchronised.

    Arguments:
        model: the model being trained.
        base: the optimizer whose parameters are trained.
        sync_perturbation: average the perturbation's gradient over processes too.
    """

    def __init__(self, model: nn.Module, base: Optimizer, sync_perturbation: bool) -> None:
        self.parameters = TrainedParameters(model, base)
        self.guard = BufferGuard()
        self.pass_index = -1  # calls of the user's function in this step, but one
        self.seen_to_move = False  # whether a step was seen in which moving the weights changed the losses
        self.swappable = Swappable(model)
        first = model[0] if type(model) is nn.ModuleList and len(model) else model  # DDP's wrapper, of several modules
        self.sync = choose_sync(first, (p for g in base.param_groups for p in g["params"]), sync_perturbation)


class Step:
    """One batch, as a method sees it.

    Arguments:
        evaluator: runs the passes.
        context: what all steps of the optimizer share.
        state: the method's memory from earlier steps, and what it adds to it.
        number: optimizer steps taken so far.
        seed: for the method's random numbers.
    """

    def __init__(
        self, evaluator: LossEvaluator, context: StepContext, state: dict[str, Any], number: int, seed: int
    ) -> None:
        self._evaluator = evaluator
        self._recorder = evaluator.recorder
        self._context = context
        self._sync = context.sync
        self._parameters = context.parameters
        self._seed = seed
        self.params = context.parameters.params
        self.index = evaluator.recorder.index
        self.state = state
        self.number = number
        self.decoupled: Vector = []  # what follows the base's step; empty if nothing does
        self.writes: list[Action] = []  # undo what was written into tables

    # -- what the method knows -----------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The model's name for each of ``params``."""
        return self._parameters.names

    def radius(self, rho: float) -> float | list[float]:
        """``rho``, or the parameter groups' own value; one radius per parameter if these differ."""
        return self._parameters.radius(rho)

    def rng(self, stream: int = 0) -> Generator:
        """A new generator for this step, the same in every process; each stream gives different numbers."""
        return generator(self._seed, self.number, stream)

    @property
    def momentum(self) -> Vector:
        """The base's first moment (SGD's momentum_buffer, Adam's exp_avg); None for a parameter that has none yet."""
        return self._parameters.momentum

    @property
    def buffers(self) -> list[Tensor]:
        """The model's floating-point buffers now, e.g. BatchNorm's statistics; read-only views are left out."""
        return writable_buffers(self._parameters.model)

    @property
    def outputs(self) -> Any:
        """What ``loss_fn`` returned alongside the losses in the last forward."""
        if self._recorder.outputs is None:
            raise TypeError(NO_OUTPUTS)
        return self._recorder.outputs

    @property
    def loss(self) -> Tensor:
        """Loss of each sample at ``w``; NaN where it was not evaluated."""
        return self._recorder.column("loss")

    @property
    def perturbed(self) -> Tensor:
        """Loss of each sample at perturbed weights; NaN where it was not evaluated."""
        return self._recorder.column("perturbed")

    @property
    def scale(self) -> Tensor | float:
        """The factor that the last backward was scaled by (GradScaler's), else 1."""
        return self._evaluator.scale

    @property
    def count(self) -> int:
        """The number of samples; before the first pass, taken from the index, the weights or the batch."""
        return self._evaluator.count()

    def min_over_ranks(self, value: int) -> int:
        """The smallest value over the training processes: for numbers of passes, on which all must agree."""
        return value if self._sync.group is None else min_over_ranks(value, self._sync.group)

    def mean_over_ranks(self, value: Tensor) -> Tensor:
        """The mean of a scalar over the training processes: for decisions on which all must agree."""
        return value if self._sync.group is None else mean_over_ranks(value, self._sync.group)

    def write(self, table: Tensor, place: tuple[Tensor, ...], values: Tensor) -> None:
        """``table[place] = values`` in a table that is too large to copy; rolled back if the step is skipped."""
        before = table[place]

        def restore() -> None:
            table.index_put_(place, before)

        self.writes.append(restore)
        self._evaluator.undo.append(restore)
        table.index_put_(place, values.to(table.dtype))

    # -- evaluating ----------------------------------------------------------------------------------------------

    def gradient(self, rows: Tensor | None = None, *, sync: bool = True, weighted: bool = True) -> Vector:
        """Forward and backward.

        With ``sync=False`` the processes do not average the result, with ``weighted=False`` all samples count the same.
        """
        if sync:
            return self._evaluator.gradient(rows, weighted=weighted)
        with self.no_sync():
            return self._evaluator.gradient(rows, weighted=weighted)

    def forward(self, rows: Tensor | None = None, *, grad: bool = True) -> Tensor:
        """Per-sample losses at the current weights, of all rows or some; ``grad=False`` builds no graph."""
        return self._evaluator.forward(rows, grad=grad)

    def backward(self, losses: Tensor, rows: Tensor | None = None, *, weighted: bool = True) -> Vector:
        """Gradient of the (weighted) mean of ``losses``, one entry per parameter."""
        return self._evaluator.backward(losses, rows, weighted=weighted)

    def no_sync(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which the processes do not average, for a forward and a backward; ``gradient(sync=False)``."""
        return self._sync.no_sync(self._evaluator.undo)

    def predict(self, values: Vector, buffers: Sequence[Tensor]) -> Any:
        """Outputs in evaluation mode at other weights and buffers (a teacher's), without gradient or side effects."""
        with self.at(values):
            return self._evaluator.predict(buffers)

    # -- beside the gradient -------------------------------------------------------------------------------------

    def decouple(self, v: Vector) -> None:
        """Subtract ``lr * v`` from the weights after the base's step, so that its momentum or scaling does not see v.

        Clipping, a GradScaler and accumulation act on v as they act on the gradient.
        """
        base = self._parameters.base
        if any("lr" not in g for g in base.param_groups):
            raise TypeError(
                f"A decoupled step is as long as the learning rate says, but {type(base).__name__} has no lr in its "
                "parameter groups. Use a base that has, or the coupled form, e.g. WSAM(decouple=False)."
            )
        self.decoupled = add(self.decoupled, v) if self.decoupled else v

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
        last = self._evaluator.displacement
        if last is not None and last.active:
            raise RuntimeError(
                "The weights are already shifted. Leave the first `with step.shifted(...)` before entering another."
            )
        displacement = Displacement(
            self.params,
            values,
            self._evaluator.undo,
            self._parameters.modules,
            relative=relative,
            swap=None if self._evaluator.compiled else self._context.swappable,
            measures=measures,
        )
        self._evaluator.displacement = displacement
        return displacement
