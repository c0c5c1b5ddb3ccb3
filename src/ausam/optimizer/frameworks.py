"""Frameworks that own the loop and step the optimizer themselves: each needs its adapter, which the user attaches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LIGHTNING = ("lightning", "pytorch_lightning")


def refuse_foreign_closure(closure: Callable[..., Any]) -> None:
    """Raise a RuntimeError for Lightning's own closure: it would clip in every pass."""
    owner = str(getattr(getattr(closure, "func", closure), "__module__", None)).partition(".")[0]
    if owner in LIGHTNING:
        raise RuntimeError(
            "Lightning steps this optimizer without its adapter, so clipping, accumulation and DDP would silently go "
            "wrong. Use Trainer(callbacks=[SharpnessAwareCallback()]), from ausam.integrations.lightning, or derive "
            "the module from SharpnessAwareModule."
        )


def refuse_plain_accelerate(name: str) -> None:
    """Raise a TypeError if Accelerate asks for its mark: its own wrapper would hide ``opt.backward``.

    An adapter that lets Accelerate wrap the optimizer sets the mark itself.
    """
    if name == "_is_accelerate_prepared":
        raise TypeError(
            "accelerator.prepare would hide opt.backward, so every step would be one of the base optimizer. Use "
            "prepare(accelerator, model, opt, ...) from ausam.integrations.accelerate, which takes the same objects; "
            "for the Trainer, use SharpnessAwareTrainer from ausam.integrations.transformers."
        )
