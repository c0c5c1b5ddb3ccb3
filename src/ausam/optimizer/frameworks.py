"""Frameworks that own the loop and step the optimizer themselves: finds the adapter that each needs.

Nothing is imported until a module of the framework turns up, so the core depends on none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import nn

ADAPTERS = {
    "lightning": "ausam.integrations.lightning",
    "pytorch_lightning": "ausam.integrations.pytorch_lightning",
}


def meet(optimizer: Any, model: nn.Module) -> None:
    """Let the adapter of the framework that the model belongs to prepare its trainer for this optimizer."""
    for cls in type(model).__mro__:
        adapter = ADAPTERS.get(cls.__module__.partition(".")[0])
        if adapter is not None:
            importlib.import_module(adapter).attach(optimizer, model)
            return


def refuse_stranger(closure: Callable[..., Any]) -> None:
    """Raise a RuntimeError for a framework's closure that bypasses its adapter: it would clip in every pass."""
    owner = str(getattr(getattr(closure, "func", closure), "__module__", None)).partition(".")[0]
    if owner in ADAPTERS:
        raise RuntimeError(
            "Lightning steps this optimizer, but it was not built for the LightningModule in configure_optimizers, so "
            "clipping, accumulation and DDP would silently go wrong. "
            "Return SharpnessAware(base, method, self) from configure_optimizers."
        )
