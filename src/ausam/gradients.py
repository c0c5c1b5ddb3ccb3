"""GradientSlots: every parameter's ``.grad``, set aside while the passes of a step run, and filled at its end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ausam.journal import Action, Journal, exhaust, get_grad, set_grad
from ausam.tensors import Vector, present

NOTHING = itertools.repeat(None)


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
        self._accumulates = bool(present(self.kept))  # otherwise every slot is empty already
        self._last: Vector = [None] * len(foreign)
        journal.note_each(set_grad, self.all, self.kept)

    def set_aside(self) -> None:
        """Empty the slots for the first pass."""
        if self._accumulates:
            self.clear()

    def clear(self) -> None:
        """Empty every slot."""
        exhaust(map(set_grad, self.all, NOTHING))

    def mark(self) -> int | None:
        """Put zeros into one slot that held a gradient before the step, and return which; None if none did."""
        slot = next((i for i, g in enumerate(self.kept) if g is not None), None)
        if slot is not None:
            self._mark = torch.zeros_like(self.all[slot])
            self.all[slot].grad = self._mark
        return slot

    def marked(self, slot: int | None) -> bool:
        """Whether those zeros are still in their slot."""
        return slot is not None and self.all[slot].grad is self._mark

    def collect(self, *, views: bool) -> Vector:
        """The gradient of the pass that just ended, one entry per trained parameter; the slots are empty afterwards.

        ``views``: the slots may be views of memory that the next pass writes to (DDP's gradient_as_bucket_view).
        """
        found: Vector = list(map(get_grad, self.all))
        if views:
            found = [g.clone() if g is not None and g._is_view() else g for g in found]
        self.clear()
        self._last = found[self._own :]
        return found[: self._own]

    def deposit(self, gradient: Vector, *, add: bool = True) -> list[Action]:
        """Actions that add the gradient to the one from before the step, like loss.backward(), or replace it.

        For :meth:`Journal.commit`, because an addition in place cannot be undone.
        """
        found = [*gradient, *self._last] if self._last else gradient
        if not add or not self._accumulates:
            return [self.put(found)]
        pairs = [(k, g) for k, g in zip(self.kept, found, strict=True) if k is not None and g is not None]
        if all(k.layout == g.layout == torch.strided for k, g in pairs):
            sums = [g if k is None else k for k, g in zip(self.kept, found, strict=True)]
            in_place = [(torch._foreach_add_, [k for k, _ in pairs], [g for _, g in pairs])] if pairs else []
            return [*in_place, self.put(sums)]
        return [self.put(self.total(gradient))]

    def put(self, gradient: Vector) -> Action:
        """The action that replaces the gradients in all slots."""
        return exhaust, map(set_grad, self.all, gradient)

    def total(self, gradient: Vector, *, add: bool = True) -> Vector:
        """What the slots would hold after :meth:`deposit`, in new memory where something is added."""
        found = [*gradient, *self._last]
        return [_sum(k, g) for k, g in zip(self.kept, found, strict=True)] if add else found


def _sum(kept: Tensor | None, found: Tensor | None) -> Tensor | None:
    if kept is None or found is None:
        return found if kept is None else kept
    return found + kept if kept.is_sparse and not found.is_sparse else kept + found  # torch has no sparse + dense
