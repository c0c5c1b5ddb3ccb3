"""Classification: cross-entropy and accuracy; for long-tailed data also accuracy by class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from ausam.lab.problems.problem import Task
from ausam.lab.records.score import Score

GROUPS = ("head", "middle", "tail")


@dataclass(frozen=True)
class Classification:
    """The task of predicting labels.

    Args:
        tail: number of classes of long-tailed data, whose score has parts; 0 for other data.
    """

    tail: int = 0
    metric = "accuracy"

    def losses(self, z: Tensor, y: Tensor, smoothing: float) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(z, y, reduction="none", label_smoothing=smoothing)

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Score:
        """Percentage of the samples that are classified correctly."""
        right, count = torch.zeros(()), 0
        by_class = torch.zeros(2, self.tail, dtype=torch.float64)
        for x, y in batches:
            hit = model(x).argmax(1) == y
            right = right.to(y.device) + hit.sum()
            count += len(y)
            if self.tail:
                by_class += torch.stack([torch.bincount(of, minlength=self.tail) for of in (y[hit], y)]).cpu()
        return Score(100.0 * float(right) / count, self.metric, parts=parts(*by_class) if self.tail else {})


def parts(right: Tensor, count: Tensor) -> dict[str, float]:
    """Balanced accuracy (the mean over classes), and the same over the first, middle and last third of the classes.

    In long-tailed data, classes with a larger number are rarer. Classes without test samples are left out.
    """
    share = 100 * right / count  # NaN for a class without samples
    groups = dict(zip(GROUPS, share.tensor_split(len(GROUPS)), strict=True)) if len(share) >= len(GROUPS) else {}
    return {name: float(of.nanmean()) for name, of in ({"balanced": share} | groups).items() if of.isfinite().any()}


class Labelled:
    """Shared by the data sets of classification problems."""

    classes: int
    long_tailed: bool

    @property
    def task(self) -> Task:
        """The task, which defines the losses and the score."""
        return Classification(self.classes if self.long_tailed else 0)

    @property
    def answer(self) -> tuple[int, ...]:
        """The shape of a network's output for a sample: one score per class."""
        return (self.classes,)
