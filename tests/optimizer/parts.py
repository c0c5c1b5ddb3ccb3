"""Models, a method and a loss function that put an optimizer to the test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from ausam.common.tensors import ascent
from tests.helpers import losses_of

BASES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


@dataclass(frozen=True)
class Remembering:
    """SAM that also keeps a running sum of gradients: a method with memory."""

    rho: float = 0.1
    sharpness: ClassVar[str] = "always"
    passes: ClassVar[tuple[float, float]] = (2.0, 2.0)

    def gradient(self, step):
        g = step.gradient(sync=False)
        old = step.state.get("sum", [torch.zeros_like(p) for p in step.params])
        step.state["sum"] = [o if gi is None else o + gi for o, gi in zip(old, g, strict=True)]
        step.state["visits"] = step.state.get("visits", 0) + 1
        with step.shifted(ascent(g, self.rho)):
            return step.gradient()


class Branches(nn.Module):
    """``used`` in every pass; ``first`` in odd forwards only; ``unused`` never; ``frozen`` used but not trained."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.used, self.first, self.unused, self.frozen = (nn.Linear(4, 3) for _ in range(4))
        self.frozen.requires_grad_(False)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        z = self.used(x) + self.frozen(x)
        return z + self.first(x) if self.calls % 2 else z


class Counting(nn.Module):
    """Buffers that a forward replaces by assignment, moves in place, makes for the first time, or resizes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)
        self.register_buffer("assigned", torch.zeros(()))
        self.register_buffer("in_place", torch.zeros(2), persistent=False)
        self.register_buffer("late", None)
        self.register_buffer("resized", torch.zeros(0))

    def forward(self, x):
        self.assigned = self.assigned + 1
        self.in_place += 1
        self.late = torch.ones(()) if self.late is None else self.late + 1
        self.resized.resize_(3).copy_(torch.full((3,), float(self.in_place[0])))
        return self.linear(x)

    def state(self):
        late = None if self.late is None else float(self.late)
        return float(self.assigned), self.in_place.tolist(), late, self.resized.tolist()


PLACES = ["loss 1", "loss 2", "gradient 1", "gradient 2"]


def spoil(model, where):
    """A loss function that is not finite in the loss or in the gradient alone, in pass 1 or in pass 2."""
    calls = 0

    def loss_fn(x, y):
        nonlocal calls
        calls += 1
        losses = losses_of(model)(x, y)
        if where == f"loss {calls}":
            return losses.clone().index_put((torch.tensor(0),), losses.new_tensor(float("inf")))
        if where == f"gradient {calls}":
            # Zero, but the square root's derivative there is infinite.
            return losses + (losses - losses.detach()).abs().sqrt()
        return losses

    return loss_fn
