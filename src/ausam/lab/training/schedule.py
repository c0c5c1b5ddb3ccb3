"""The learning rate over a run, and whether a run can be extended."""

from __future__ import annotations

import math
from dataclasses import replace

from ausam.lab.config import Config, lr_parts
from ausam.lab.registry.from_config import method_and_policy


def learning_rate(config: Config, epoch: float) -> float:
    """The rate after so many epochs: a cosine from lr to 0, or divided by ten after each fraction in ``lr_steps``."""
    if config.lr_steps:
        return config.lr * 0.1 ** sum(epoch >= round(part * config.epochs) for part in lr_parts(config.lr_steps))
    return config.lr * 0.5 * (1 + math.cos(math.pi * epoch / config.epochs))


def cannot_extend(config: Config, epochs: int, done: int) -> str | None:
    """Why a run with ``done`` finished epochs cannot be extended to ``epochs``; None if it can.

    It can if every finished epoch would have been the same in the longer run.
    """
    longer = replace(config, epochs=epochs)
    if epochs < config.epochs:
        return f"it was started with {config.epochs} epochs, and a run can only be made longer"
    moments = [half / 2 for half in range(2 * done)]
    if any(learning_rate(config, e) != learning_rate(longer, e) for e in moments):
        how = "in steps at fractions of all epochs" if config.lr_steps else "as a cosine over all epochs"
        return f"its learning rate falls {how}, so the {done} finished epochs would have had a different one"
    if config.rho_schedule in ("linear", "cosine") and epochs != config.epochs:
        return f"its rho falls over all epochs, so the {done} finished epochs would have had a different one"
    steps = 100  # steps per epoch; any number shows which objects plan over all epochs
    pairs = [method_and_policy(c, steps=c.epochs * steps) for c in (config, longer)]
    for one, other in zip(*pairs, strict=True):
        if one != other:
            return (
                f"{type(one).__name__} plans over all epochs, so the {done} finished epochs would have been different"
            )
    return None
