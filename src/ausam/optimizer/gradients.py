"""GradientSlots: every parameter's ``.grad``, set aside while the passes of a step run, and filled at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ausam.common.tensors import Vector, get_grad, norm, present, scale
from ausam.optimizer.parameters import Undo


class GradientSlots:
    """The contents of ``.grad`` before a step, set aside, and space for the gradient of each pass.

    Arguments:
        params: the parameters that the optimizer trains.
        foreign: parameters of the model that another optimizer owns. They get the last pass's gradient, because no
            method combines it.
        undo: takes the previous contents.
        replace: whether the step's gradient replaces the trained parameters' previous one. Otherwise it is added.
    """

    def __init__(
        self, params: list[nn.Parameter], foreign: list[nn.Parameter], undo: Undo, *, replace: bool = False
    ) -> None:
        self.all: Sequence[Tensor] = [*params, *foreign] if foreign else params
        self._own = len(params)
        self._last: Vector = [None] * len(foreign)
        self._kept = before = [*map(get_grad, self.all)]
        undo.append(lambda: self.put(before))
        if present(before):
            self.put([None] * len(before))
        if replace:
            self._kept = [*[None] * self._own, *before[self._own :]]
        self._accumulates = bool(present(self._kept))

    @property
    def held(self) -> Vector:
        """What the gradient of the step is added to: the trained parameters' gradients of earlier calls."""
        return self._kept[: self._own]

    def collect(self, *, views: bool) -> Vector:
        """The gradient of the pass that just ended, one entry per trained parameter. The slots are empty afterwards.

        ``views``: the slots may be views of memory that the next pass writes to (DDP's gradient_as_bucket_view).
        """
        gradient: Vector = [*map(get_grad, self.all)]
        for p in self.all:
            p.grad = None
        if views:
            gradient = [g.clone() if g is not None and g._is_view() else g for g in gradient]
        if not self._last:
            return gradient
        self._last = gradient[self._own :]
        return gradient[: self._own]

    def put(self, gradient: Vector) -> None:
        """Replace the gradients in all slots."""
        for p, g in zip(self.all, gradient, strict=True):
            p.grad = g

    def deposit(self, gradient: Vector) -> tuple[list[Tensor], list[Tensor]]:
        """Add the gradient to the one from before the step, like loss.backward().

        An addition in place cannot be undone, so it is left to the end of the step. The caller then adds the two lists
        that this returns with ``torch._foreach_add_``, if they are not empty.
        """
        new = [*gradient, *self._last] if self._last else gradient
        if not self._accumulates:
            self.put(new)
            return [], []
        pairs = [(k, g) for k, g in zip(self._kept, new, strict=True) if k is not None and g is not None]
        self.put([g if k is None else k for k, g in zip(self._kept, new, strict=True)])
        return [k for k, _ in pairs], [g for _, g in pairs]

    def total(self, gradient: Vector) -> Vector:
        """What the slots hold after :meth:`deposit` and its addition, in new memory where something is added."""
        pairs = zip(self._kept, [*gradient, *self._last], strict=True)
        return [k if g is None else g if k is None else k + g for k, g in pairs]


@dataclass(frozen=True)
class Decoupled:
    """A vector ``v`` that is subtracted after the base's step, times the learning rate: ``w -= lr * v``.

    It changes with ``.grad``. Between ``backward`` and ``step`` a GradScaler may divide ``.grad`` by its scale,
    clipping may shorten it, and a loop may divide or clear it. All of this is one factor: its length now, divided by
    its length when ``backward`` returned. ``v`` is multiplied by the same factor.

    Arguments:
        params: the trained parameters.
        vector: an entry for each of them.
        length: of their ``.grad`` when ``backward`` returned.
    """

    params: Sequence[Tensor]
    vector: Vector
    length: Tensor

    def rescaled(self, gradient: Vector | None = None) -> Vector:
        """The vector, after what has become of the gradient: what ``.grad`` holds now, or ``gradient``."""
        gradient = [p.grad for p in self.params] if gradient is None else gradient
        factor = norm(gradient).to(self.length.device) / self.length
        # Nothing is left of a gradient of length zero, or of one that is not finite.
        return scale(self.vector, factor.nan_to_num(nan=0.0, posinf=0.0))

    @torch.no_grad()
    def subtract(self, vector: Vector, groups: Sequence[dict[str, Any]]) -> None:
        """``w -= lr * vector``, with the learning rate of each group."""
        entry = dict(zip(self.params, vector, strict=True))
        for group in groups:
            params = [p for p in group["params"] if entry.get(p) is not None]
            update = scale([entry[p] for p in params], -group["lr"] if group.get("maximize") else group["lr"])
            for p, u in zip(params, update, strict=True):
                p.sub_(u)
