"""torch's closure protocol, for code that owns the loop and calls ``optimizer.step(closure)``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ausam.run import Run
from ausam.tensors import Vector
from ausam.workspace import Workspace


class ClosureRun(Run):
    """A Run whose only source is torch's closure: it clears gradients, runs forward and backward, returns the loss."""

    def __init__(
        self,
        workspace: Workspace,
        state: dict[str, Any],
        step: int,
        closure: Callable[[], Any],
    ) -> None:
        super().__init__(workspace, state, step, loss_fn=None)
        self._closure = closure
        self.first: Any = None  # what the closure returned at w: the clean loss

    def gradient(self, rows: Tensor | None = None, *, sync: bool = True) -> Vector:
        """The gradient that one call of the closure leaves behind."""
        if rows is not None:
            self.forward(rows)  # refuses: a closure has no rows
        self._settle(True)
        self._clear()
        with torch.enable_grad(), self._noise(), contextlib.nullcontext() if sync else self._no_sync():
            loss = self._closure()
        if self.first is None:
            self.first = loss
        if loss is not None:
            self.total = self.total + torch.as_tensor(loss).detach().float().sum()
        return self._collect()

    def deposit(self, gradient: Vector) -> None:
        """Set ``.grad``: by the closure's protocol gradients do not accumulate over steps."""
        self._clear()
        super().deposit(gradient)
