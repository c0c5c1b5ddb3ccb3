"""GradientSlots: every parameter's ``.grad``, set aside while the passes of a step run, and filled at its end."""

from __future__ import annotations

import itertools
import operator
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ausam.common.atomic import Action, exhaust
from ausam.common.tensors import Vector, sharded
from ausam.optimizer.journal import Journal, get_grad, set_grad

NOTHING = itertools.repeat(None)


class ClearDetector:
    """Zeros in the slot of a parameter, which show whether a closure clears the slot before it adds its own gradient.

    Setting the slot to None replaces the zeros, and writing zeros into it raises their version. Adding a gradient does
    so too, so a hook looks at the slot just before that.

    Arguments:
        p: the parameter.
        journal: records how to take the hook away.
    """

    def __init__(self, p: Tensor, journal: Journal) -> None:
        self._p = p
        self._zeros = torch.zeros_like(p)
        self._version = self._zeros._version
        self._seen: bool | None = None  # whether the slot was cleared, as the hook saw it
        self._hook: Action | None = None  # takes the hook away
        p.grad = self._zeros
        if not sharded(p):  # FSDP adds to the slot of a sharded one without calling its hooks
            # What register_hook does, but noted before it is done: a signal in between would leave the hook for ever.
            if p._backward_hooks is None:
                p._backward_hooks = OrderedDict()
            handle = RemovableHandle(p._backward_hooks)
            self._hook = p._backward_hooks.pop, handle.id, None
            journal.append(self._hook)
            p._backward_hooks[handle.id] = self._look

    def _look(self, gradient: Tensor) -> None:  # noqa: ARG002
        if self._seen is None:  # the first time: after it, a gradient has been added
            self._seen = self._p.grad is not self._zeros or self._zeros._version != self._version

    def cleared(self, *, alone: bool) -> bool:
        """Whether the closure, which has returned, has cleared the slot.

        ``alone``: there is one process, so only the closure can have written to a slot that no gradient reached.
        """
        if self._hook is not None:
            operator.call(*self._hook)
        if self._seen is not None:
            return self._seen
        written = alone and not sharded(self._p) and self._zeros._version != self._version
        return self._p.grad is not self._zeros or written


class GradientSlots:
    """The contents of ``.grad`` before a step, set aside, and space for the gradient of each pass.

    Arguments:
        params: the parameters that the optimizer trains.
        foreign: parameters of the model that another optimizer owns. They get the last pass's gradient, because no
            method combines it.
        journal: records the previous contents.
    """

    def __init__(self, params: list[nn.Parameter], foreign: list[nn.Parameter], journal: Journal) -> None:
        self.all: Sequence[Tensor] = [*params, *foreign] if foreign else params
        self._own = len(params)
        self.kept: Vector = list(map(get_grad, self.all))
        self._accumulates = any(map(operator.is_not, self.kept, NOTHING))  # otherwise every slot is empty already
        self._last: Vector = [None] * len(foreign)
        self._under = self.kept  # what the gradient of the step is added to
        journal.append((exhaust, map(set_grad, self.all, self.kept)))
        if self._accumulates:
            self.clear()

    def clear(self) -> None:
        """Empty every slot."""
        exhaust(map(set_grad, self.all, NOTHING))

    def detectors(self, journal: Journal) -> list[ClearDetector | None]:
        """A detector in every slot that held a gradient before the step."""
        return [None if k is None else ClearDetector(p, journal) for p, k in zip(self.all, self.kept, strict=True)]

    def replace(self, cleared: Sequence[bool], *, own: bool) -> None:
        """Let the gradient of the step replace what the cleared slots, and perhaps all of our own, held before it."""
        ours = (own and i < self._own for i in range(len(self.all)))
        self._under = [None if gone or our else k for k, gone, our in zip(self.kept, cleared, ours, strict=True)]

    def collect(self, *, views: bool) -> Vector:
        """The gradient of the pass that just ended, one entry per trained parameter; the slots are empty afterwards.

        ``views``: the slots may be views of memory that the next pass writes to (DDP's gradient_as_bucket_view).
        """
        gradient: Vector = list(map(get_grad, self.all))
        if views:
            gradient = [g.clone() if g is not None and g._is_view() else g for g in gradient]
        self.clear()
        self._last = gradient[self._own :]
        return gradient[: self._own]

    @property
    def held(self) -> Vector:
        """What the gradient of the step is added to: the trained parameters' gradients of earlier calls."""
        return self._under[: self._own]

    def deposit(self, gradient: Vector) -> list[Action]:
        """Actions that add the gradient to the one from before the step, like loss.backward().

        For the commit of the step, because an addition in place cannot be undone.
        """
        new = [*gradient, *self._last] if self._last else gradient
        if not self._accumulates:
            return [self.put(new)]
        pairs = [(k, g) for k, g in zip(self._under, new, strict=True) if k is not None and g is not None]
        if all(k.layout == g.layout == torch.strided for k, g in pairs):
            sums = [g if k is None else k for k, g in zip(self._under, new, strict=True)]
            in_place = [(torch._foreach_add_, [k for k, _ in pairs], [g for _, g in pairs])] if pairs else []
            return [*in_place, self.put(sums)]
        return [self.put(self.total(gradient))]

    def put(self, gradient: Vector) -> Action:
        """The action that replaces the gradients in all slots."""
        return exhaust, map(set_grad, self.all, gradient)

    def total(self, gradient: Vector) -> Vector:
        """What the slots would hold after :meth:`deposit`, in new memory where something is added."""
        return [_sum(k, g) for k, g in zip(self._under, [*gradient, *self._last], strict=True)]


def _sum(kept: Tensor | None, new: Tensor | None) -> Tensor | None:
    if kept is None or new is None:
        return new if kept is None else kept
    return new + kept if kept.is_sparse and not new.is_sparse else kept + new  # torch has no sparse + dense
