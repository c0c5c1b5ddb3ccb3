"""One label per sample: cross-entropy, and the part that is right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from ausam.lab.problems.problem import Score, Task


class Classification:
    """The task of labels."""

    metric = "accuracy"

    def losses(self, z: Tensor, y: Tensor, smoothing: float) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(z, y, reduction="none", label_smoothing=smoothing)

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Score:
        """Percent of the samples that are classified right."""
        right, count = torch.zeros(()), 0
        for x, y in batches:
            right = right.to(y.device) + (model(x).argmax(1) == y).sum()
            count += len(y)
        return Score(100.0 * float(right) / count, self.metric)


class Labelled:
    """What the data sets of a classification have in common."""

    task: ClassVar[Task] = Classification()
    classes: int

    @property
    def answer(self) -> tuple[int, ...]:
        """What a network answers for a sample: a score a class."""
        return (self.classes,)
