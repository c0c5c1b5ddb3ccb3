"""torch's closure protocol as a step, for code that owns the loop and calls ``optimizer.step(closure)``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ausam.common.tensors import Vector
from ausam.optimizer.step import Step


class ClosureStep(Step):
    """A step whose only source is torch's closure: it runs forward and backward and returns the loss.

    A closure that clears the gradients first replaces the previous ``.grad``; one that does not adds to it, as in
    torch. A :class:`~ausam.optimizer.gradients.Mark` in each slot tells the two apart during the first run.
    """

    def __init__(self, closure: Callable[[], Any], scale: float = 1.0, **given: Any) -> None:
        super().__init__(closure, **given)
        self.scale = scale
        self._values: list[Any] = []
        self._cleared = False

    def zero_grad_called(self) -> None:
        """The closure has called the optimizer's zero_grad."""
        self._cleared = True

    def forward(self, rows: Tensor | None = None, *, grad: bool = True) -> Tensor:  # noqa: ARG002
        """Refuse: a closure has no per-sample losses."""
        raise RuntimeError(
            "This method needs per-sample losses, which opt.step(closure) cannot provide. "
            "Call opt.backward(loss_fn, *batch) and then opt.step()."
        )

    @property
    def count(self) -> int:
        """Refuse: a closure does not say how many samples it uses."""
        return len(self.forward())

    def predict(self, values: Vector, buffers: Sequence[Tensor]) -> Any:  # noqa: ARG002
        """Refuse: a closure has no outputs."""
        self.forward()

    def gradient(self, rows: Tensor | None = None, *, sync: bool = True) -> Vector:
        """The gradient that one call of the closure leaves behind."""
        if rows is not None:
            self.forward(rows)
        self._guard.before_pass(training=True, shifted=self._away)
        with contextlib.nullcontext() if sync else self.alone():
            return self._run()

    def _run(self) -> Vector:
        first = not self._values
        self._sync.before_backward()
        marks = self._slots.marks(self.journal) if first else []
        value = self._call(self._loss_fn, (), grad=True)
        if first:
            cleared = [mark is not None and mark.cleared(alone=self.group is None) for mark in marks]
            self._slots.replace(cleared, own=self._cleared)
        self._values.append(value)
        for part in tree_leaves(value):
            if isinstance(part, (Tensor, float, int)):
                self._looked_at.append(torch.as_tensor(part).detach().float().sum())
        return self._collect()

    def _make_lazy_modules(self) -> None:
        """Do nothing: the closure's first run creates them."""

    def result(self) -> Any:
        """What the closure returned in its first run, at ``w``."""
        return self._values[0] if self._values else None
