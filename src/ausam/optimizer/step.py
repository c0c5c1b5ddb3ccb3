"""Step: what a method may use.

A method evaluates losses and gradients at the weights or elsewhere, and returns one gradient. This file has what every
step offers. Its two kinds, for a per-sample loss function and for torch's closure, are in passes.py. Moving the weights
(displacement), the buffers (buffers) and ``.grad`` (gradients) have a file each. The optimizer begins, commits and
undoes the step (sharpness_aware).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from ausam.common.random import Replay, generator
from ausam.common.ranks import mean_over_ranks, min_over_ranks
from ausam.common.settings import NON_NEGATIVE, checked_value
from ausam.common.tensors import Vector, add
from ausam.optimizer.buffers import BufferGuard, writable_buffers
from ausam.optimizer.displacement import Displacement, Measured, Swappable
from ausam.optimizer.distributed import choose_sync
from ausam.optimizer.errors import NO_LOSSES, NO_OUTPUTS, UNCHANGED
from ausam.optimizer.gradients import GradientSlots
from ausam.optimizer.parameters import TrainedParameters, Undo, radius_key

COMPILED = "_torchdynamo_orig_callable"  # an attribute of every function that torch.compile returns


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
        self.radius_key = radius_key(base)
        self.guard = BufferGuard()
        self.pass_index = -1  # calls of the user's function in this step, less one
        self.seen_to_move = False  # whether a step was seen in which moving the weights changed the losses
        self.swappable = Swappable(model)
        first = model[0] if type(model) is nn.ModuleList and len(model) else model  # DDP's wrapper, of several modules
        self.sync = choose_sync(first, (p for g in base.param_groups for p in g["params"]), sync_perturbation)


class Step:
    """One batch, as a method sees it.

    Arguments:
        context: what all steps of the optimizer share.
        function: the user's loss function or closure.
        index: dataset index of each sample, or None.
        replay: whether all passes draw the same random numbers.
    """

    params: list[nn.Parameter]  # the parameters that the optimizer trains
    state: dict[str, Any]  # the method's memory from earlier steps, and what it adds to it
    number: int  # optimizer steps taken so far
    scale: Tensor | float = 1.0  # the factor that the last backward was scaled by (GradScaler's)
    samples_forward = 0
    samples_backward = 0
    decoupled: Vector | None = None  # what follows the base's step

    _displacement: Displacement | None = None  # where the weights were last moved to
    _outputs: Any = None  # of the last forward

    def __init__(
        self, context: StepContext, function: Callable[..., Any], index: Tensor | None = None, *, replay: bool = False
    ) -> None:
        self.index = index
        self.undo: Undo = [torch_modes(context.parameters.kinds)]
        self.warnings: list[str] = []  # what the user should know of this step
        self.evaluated: list[Tensor] = []  # the losses of each pass, to see whether they are finite
        self._context = context
        self._parameters = context.parameters
        self._guard = context.guard
        self._sync = context.sync
        self._function = function
        self._replay = Replay() if replay else None
        self._columns: dict[Measured, Tensor] = {}

    def begin(self, state: dict[str, Any], number: int, seed: int, *, replace: bool) -> None:
        """Record the state before the first pass and how to restore it, and set the gradients aside."""
        parameters = self._parameters
        self.params, self.state, self.number, self._seed = parameters.params, state, number, seed
        self._context.pass_index = -1
        self._guard.begin(parameters.modules, parameters.frozen, self.undo)
        self.slots = GradientSlots(parameters.params, parameters.foreign, self.undo, replace=replace)

    # -- what the method knows -----------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The model's name for each of ``params``."""
        return self._parameters.names

    def radius(self, rho: float) -> float | list[float]:
        """``rho``, or the parameter groups' own, e.g. of a schedule. One per parameter if they differ.

        Negative for a group with ``maximize=True``, where the worst point near the weights is the lowest.
        """
        groups, key = self._parameters.base.param_groups, self._context.radius_key
        if not [g for g in groups if key in g or g.get("maximize")]:
            return rho
        of: dict[nn.Parameter, float] = {}
        for g in reversed(groups):
            radius = checked_value("SharpnessAware", f"{key} of a parameter group", g.get(key, rho), NON_NEGATIVE)
            of.update(dict.fromkeys(g["params"], -float(radius) if g.get("maximize") else float(radius)))
        radii = [of[p] for p in self.params]
        # If all groups share one radius (a schedule), a scalar is as fast as the method's own and rounds the same.
        return radii[0] if len(set(radii)) == 1 else radii

    def rng(self, stream: int = 0) -> Generator:
        """A new generator for this step, the same in every process. Each stream gives different numbers."""
        return generator(self._seed, self.number, stream)

    @property
    def momentum(self) -> Vector:
        """The base's first moment (SGD's momentum_buffer, Adam's exp_avg). None for a parameter that has none yet."""
        base = self._parameters.base
        states = [base.state.get(p, {}) for p in self.params]
        moments: Vector = [s.get("momentum_buffer", s.get("exp_avg")) for s in states]
        rising = {p for g in base.param_groups if g.get("maximize") for p in g["params"]}
        # A group that is maximised remembers the negative gradient.
        return [-v if v is not None and p in rising else v for p, v in zip(self.params, moments, strict=True)]

    @property
    def buffers(self) -> list[Tensor]:
        """The model's floating-point buffers now, e.g. BatchNorm's statistics. Read-only views are left out."""
        return writable_buffers(self._parameters.model)

    @property
    def outputs(self) -> Any:
        """What ``loss_fn`` returned alongside the losses in the last forward."""
        if self._outputs is None:
            raise TypeError(NO_OUTPUTS)
        return self._outputs

    @property
    def loss(self) -> Tensor:
        """Loss of each sample at ``w``. NaN where it was not evaluated."""
        return self._column("loss")

    @property
    def perturbed(self) -> Tensor:
        """Loss of each sample at perturbed weights. NaN where it was not evaluated."""
        return self._column("perturbed")

    @property
    def count(self) -> int:
        """The number of samples. Before the first pass, taken from the index, the weights or the batch."""
        raise RuntimeError(NO_LOSSES)

    def min_over_ranks(self, value: int) -> int:
        """The smallest value over the training processes: for numbers of passes, on which all must agree."""
        return value if self._sync.group is None else min_over_ranks(value, self._sync.group)

    def mean_over_ranks(self, value: Tensor) -> Tensor:
        """The mean of a scalar over the training processes: for decisions on which all must agree."""
        return value if self._sync.group is None else mean_over_ranks(value, self._sync.group)

    def write(self, table: Tensor, place: tuple[Tensor, ...], values: Tensor) -> None:
        """``table[place] = values`` in a table that is too large to copy. It is rolled back if the step is skipped."""
        self.undo.append(functools.partial(table.index_put_, place, table[place]))
        table.index_put_(place, values.to(table.dtype))

    # -- evaluating ----------------------------------------------------------------------------------------------

    def gradient(self, rows: Tensor | None = None, *, sync: bool = True, weighted: bool = True) -> Vector:
        """Forward and backward.

        With ``sync=False`` the processes do not average the result, with ``weighted=False`` all samples count the same.
        """
        if sync or not self._sync.active:
            return self.backward(self.forward(rows), rows, weighted=weighted)
        with self.no_sync():
            return self.backward(self.forward(rows), rows, weighted=weighted)

    def forward(self, rows: Tensor | None = None, *, grad: bool = True) -> Tensor:  # noqa: ARG002
        """Per-sample losses at the current weights, of all rows or some. ``grad=False`` builds no graph."""
        raise RuntimeError(NO_LOSSES)

    def backward(self, losses: Tensor, rows: Tensor | None = None, *, weighted: bool = True) -> Vector:  # noqa: ARG002
        """Gradient of the (weighted) mean of ``losses``, one entry per parameter."""
        raise RuntimeError(NO_LOSSES)

    def no_sync(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which the processes do not average, for a forward and a backward. ``gradient(sync=False)``."""
        return self._sync.no_sync(self.undo)

    def predict(self, values: Vector, buffers: Sequence[Tensor]) -> Any:  # noqa: ARG002
        """Outputs in evaluation mode at other weights and buffers (a teacher's), without gradient or side effects."""
        raise RuntimeError(NO_LOSSES)

    def result(self) -> Any:
        """What the caller of the optimizer gets when the method has finished."""
        raise NotImplementedError

    def _call(self, arguments: tuple[Any, ...] = (), *, grad: bool = True) -> Any:
        """Call the user's function."""
        self._context.pass_index += 1
        function = self._function
        if self._replay is not None:
            function, arguments = self._replay.call, (function, arguments, self.params)
        if grad == torch.is_grad_enabled():
            return function(*arguments)
        with torch.set_grad_enabled(grad):
            return function(*arguments)

    def _column(self, name: Measured) -> Tensor:
        """The losses of one feedback column. NaN where they were not evaluated."""
        if name not in self._columns:
            like = next(iter(self._columns.values()), torch.empty(0))
            self._columns[name] = torch.full_like(like, torch.nan)
        return self._columns[name]

    # -- beside the gradient -------------------------------------------------------------------------------------

    def decouple(self, v: Vector) -> None:
        """Subtract ``lr * v`` from the weights after the base's step, so that its momentum or scaling does not see v.

        Clipping, a GradScaler and accumulation act on v as they act on the gradient.
        """
        self.decoupled = add(self.decoupled, v) if self.decoupled else v

    # -- moving the weights --------------------------------------------------------------------------------------

    def shifted(self, e: Vector, *, measures: Measured = "perturbed") -> Displacement:
        """Move the weights to ``w + e`` inside the context, then back to ``w`` bit for bit. Overwrites ``e``.

        ``measures`` names the feedback column for losses evaluated inside.
        """
        return self._displaced(e, measures=measures, relative=True)

    def at(self, values: Vector) -> Displacement:
        """Move the weights to ``values`` inside the context, then back to ``w`` bit for bit."""
        return self._displaced(values, measures="perturbed", relative=False)

    def _displaced(self, values: Vector, *, measures: Measured, relative: bool) -> Displacement:
        if self._displacement is not None and self._displacement.active:
            raise RuntimeError(
                "The weights are already shifted. Leave the first `with step.shifted(...)` before entering another."
            )
        # A compiled function's graph may have recorded the addresses of the weights.
        swap = not hasattr(self._function, COMPILED) and self._context.swappable(self.params)
        self._displacement = Displacement(
            self.params, values, self.undo, self._parameters.modules, relative=relative, swap=swap, measures=measures
        )
        return self._displacement

    def _check_moved(self, before: Tensor, after: Tensor) -> None:
        """See, once, that moving the weights changes a loss: it does not if the graph was built before the step."""
        known = before.isfinite() & after.isfinite()
        self._context.seen_to_move = bool(known.any())
        same = self._context.seen_to_move and torch.equal(before[known], after[known])
        if same and self._displacement is not None and self._displacement.moved():
            self.warnings.append(UNCHANGED)


def torch_modes(kinds: Iterable[str]) -> Callable[[], None]:
    """Restores torch's gradient mode and autocast, which an interrupted context may leave switched.

    Arguments:
        kinds: the types of the devices whose autocast is restored.
    """
    grad, cache = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
    autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]

    def restore() -> None:
        torch.set_grad_enabled(grad)
        for kind, enabled, dtype in autocast:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(cache)
        torch.clear_autocast_cache()

    return restore
