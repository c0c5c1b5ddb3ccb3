"""Our optimizers in the form that other people's test suites expect: a class that takes parameters and settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ausam import Plain, SharpnessAware, compat


class Parameters(nn.Module):
    """The model that a suite does not have: the parameters of an optimizer, buffers or not."""

    def __init__(self, base: Optimizer) -> None:
        super().__init__()
        params = [p for group in base.param_groups for p in group["params"]]
        self.all = nn.ParameterList([p for p in params if isinstance(p, nn.Parameter)])


def wrap(base: Optimizer) -> SharpnessAware:
    """``SharpnessAware(base, Plain(), ...)``, around an optimizer that a suite has built."""
    return SharpnessAware(base, Plain(), Parameters(base))


def plain(kind: Callable[..., Optimizer]) -> type[SharpnessAware]:
    """``SharpnessAware(kind(...), Plain(), ...)`` as a class: every step must be that of ``kind`` alone."""

    class Wrapped(SharpnessAware):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            base = kind(*args, **kwargs)
            super().__init__(base, Plain(), Parameters(base))

    return Wrapped


def sam(kind: Callable[..., Optimizer], rho: float = 0.0) -> type[compat.SAM]:
    """``compat.SAM`` as a class whose radius is 0 unless given, so that its steps are those of ``kind``, too.

    With a closure it runs both passes itself: a suite calls ``step(closure)`` without a backward before it.
    """

    class Wrapped(compat.SAM):
        def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(params, lambda given, **_: kind(given, *args, **kwargs), rho=rho)

        def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
            if closure is None:
                return super().step()
            with torch.enable_grad():
                loss = closure()
            if all(p.grad is None for group in self.param_groups for p in group["params"]):
                return loss
            self.first_step()
            with torch.enable_grad():
                closure()
            self.second_step()
            return loss

    return Wrapped
