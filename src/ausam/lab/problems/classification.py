"""What a network is trained for: the loss of every sample, and the scores it is judged by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Task(Protocol):
    """A kind of problem. Every data set belongs to one."""

    metric: str  # what people call the score "accuracy", which is in percent

    def losses(self, z: Tensor, y: Tensor, smoothing: float) -> Tensor:
        """The loss of every sample, shape (n,), from what the network answers."""

    def scores(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
        """The score "accuracy" over these batches, and others beside it. The model is in eval mode."""


class Classification:
    """One label a sample: cross-entropy, and the part that is right."""

    metric = "accuracy"

    def losses(self, z: Tensor, y: Tensor, smoothing: float) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(z, y, reduction="none", label_smoothing=smoothing)

    def scores(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
        """Percent of the samples that are classified right."""
        right, count = torch.zeros(()), 0
        for x, y in batches:
            right = right.to(y.device) + (model(x).argmax(1) == y).sum()
            count += len(y)
        return {"accuracy": 100.0 * float(right) / count}


class Labelled:
    """What the data sets of a classification have in common."""

    task: ClassVar[Task] = Classification()
    classes: int

    @property
    def answer(self) -> tuple[int, ...]:
        """What a network answers for a sample: a score a class."""
        return (self.classes,)
