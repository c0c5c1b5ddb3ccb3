"""A multilayer perceptron for images: no convolutions, so an epoch of small images takes seconds on a CPU."""

from __future__ import annotations

from torch import nn


def mlp(classes: int, channels: int, *, side: int = 14, width: int = 256) -> nn.Module:
    """Images averaged to ``side`` x ``side`` pixels, then two hidden layers of ``width`` units with BatchNorm."""
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(side),
        nn.Flatten(),
        nn.Linear(channels * side**2, width, bias=False),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, width, bias=False),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )
