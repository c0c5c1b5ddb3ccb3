"""The learning rate over a run."""

from __future__ import annotations

import math

from ausam_lab.config import Config, lr_parts


def learning_rate(config: Config, epoch: float) -> float:
    """The rate after so many epochs: a cosine from lr to 0, or divided by ten after each fraction in ``lr_steps``."""
    if config.lr_steps:
        return config.lr * 0.1 ** sum(epoch >= round(part * config.epochs) for part in lr_parts(config.lr_steps))
    return config.lr * 0.5 * (1 + math.cos(math.pi * epoch / config.epochs))
