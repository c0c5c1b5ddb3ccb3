"""A random part of every mini-batch with equal chances for all classes, as is common for long-tailed data."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from ausam.selection.policy import Choice, everything, part, race
from ausam.selection.scores import Scores
from ausam.settings import Part, check


@dataclass(frozen=True)
class ClassBalanced:
    """Draw a part of each mini-batch with odds that are inversely proportional to the frequency of the class.

        odds_i = 1 / |{j: y_j = y_i}|                                         (over the whole dataset)

    and ``max(1, int(alpha n))`` of ``n`` samples are drawn without replacement, in every epoch.

    >>> from ausam import ClassBalanced, SelectiveBatchSampler
    >>> policy = ClassBalanced([0] * 90 + [1] * 10, alpha=0.5)
    >>> [len(batch) for batch in SelectiveBatchSampler(100, batch_size=32, policy=policy)]
    [16, 16, 16, 2]

    Arguments:
        labels: the class of every sample of the dataset, as a list, array or tensor of whole numbers >= 0.
        alpha: part of each mini-batch that is kept, in (0, 1].

    A control for long tails, which needs the labels: AUSampling does not. A rare class can only be drawn where the
    mini-batch has it, so classes come out balanced only if alpha is small against their part. Wrong labels count as
    rare classes if they are. Part of the work: alpha.
    """

    labels: Any = field(repr=False, compare=False)
    alpha: Part = 0.5
    signal: ClassVar[str] = "loss"
    scope: ClassVar[str] = "batch"
    period: ClassVar[int] = 1
    decay: ClassVar[float] = 1.0
    spread: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "labels", _checked(self.labels))

    @cached_property
    def _odds(self) -> Tensor:
        """Of each class."""
        found: Tensor = 1.0 / self.labels.bincount()
        return found

    @property
    def kept(self) -> float:
        """Part of the samples that is used."""
        return self.alpha

    def count(self, epoch: int, n: int) -> int:  # noqa: ARG002
        """The part alpha, in every epoch."""
        return part(self.alpha, n)

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:  # noqa: ARG002
        """A draw with the odds of the classes."""
        if len(self.labels) != len(scores):
            raise ValueError(
                f"ClassBalanced has {len(self.labels)} labels, but the dataset has {len(scores)} samples. "
                "Give the label of every sample, in the order of the dataset."
            )
        if self.alpha == 1:
            return everything(candidates)
        return race(self._odds[self.labels[candidates]], part(self.alpha, candidates.shape[1]), rng)


def _checked(labels: Any) -> Tensor:
    try:
        found = torch.as_tensor(labels).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        found = torch.empty(0, 0)
    if found.dim() != 1 or not len(found) or found.is_floating_point() or found.is_complex():
        raise TypeError(
            f"ClassBalanced: labels are {_shown(labels)}. They must be one whole number per sample: the class of each."
        )
    if int(found.min()) < 0:
        raise ValueError(f"ClassBalanced: labels hold {int(found.min())}. Classes must be numbered from 0.")
    return found.long()


def _shown(labels: Any) -> str:
    if isinstance(labels, Tensor):
        return f"a tensor of shape {tuple(labels.shape)} and type {labels.dtype}"
    return f"{labels!r:.60}"
