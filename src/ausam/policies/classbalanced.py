"""A random subset of every mini-batch that balances the classes: the usual control for long-tailed data."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Generator, Tensor

from ausam.common.settings import Part, validate
from ausam.common.tensors import CPU
from ausam.policies.base import Choice, everything, part, race

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


@dataclass(frozen=True)
class ClassBalanced:
    """Draw a fraction of each mini-batch with odds inversely proportional to the frequency of the class.

        odds_i = 1 / |{j: y_j = y_i}|                                         (over the whole dataset)

    and ``max(1, int(alpha n))`` of ``n`` samples are drawn without replacement, in every epoch.

    >>> from ausam import ClassBalanced, SelectiveBatchSampler
    >>> policy = ClassBalanced([0] * 90 + [1] * 10, alpha=0.5)
    >>> [len(batch) for batch in SelectiveBatchSampler(100, batch_size=32, policy=policy)]
    [16, 16, 16, 2]

    Arguments:
        labels: the class of every sample of the dataset, as a list, array or tensor of whole numbers >= 0.
        alpha: fraction of each mini-batch to keep, in (0, 1].

    Use it as a control on long-tailed data. It needs the labels; AUSampling does not. A rare class can only be drawn
    from a mini-batch that contains it, so the classes come out balanced only if alpha is small compared with their
    share of the data. Samples wrongly labelled as a rare class are drawn as often as that class. Cost: a fraction
    alpha of the samples.
    """

    labels: Any = field(repr=False, compare=False)
    alpha: Part = 0.5
    signal: ClassVar[str] = "loss"
    scope: ClassVar[str] = "batch"
    period: ClassVar[int] = 1
    decay: ClassVar[float] = 1.0
    spread: ClassVar[bool] = False

    def __post_init__(self) -> None:
        validate(self)
        object.__setattr__(self, "labels", _checked(self.labels))

    @cached_property
    def _odds(self) -> Tensor:
        """Odds of each class."""
        found: Tensor = 1.0 / self.labels.bincount()
        return found

    @property
    def kept(self) -> float:
        """Fraction of the samples used."""
        return self.alpha

    def count(self, epoch: int, n: int) -> int:  # noqa: ARG002
        """A fraction alpha in every epoch."""
        return part(self.alpha, n)

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:  # noqa: ARG002
        """A weighted draw with the odds of each sample's class."""
        if len(self.labels) != len(scores):
            raise ValueError(
                f"ClassBalanced has {len(self.labels)} labels, but the dataset has {len(scores)} samples. "
                "Pass the label of every sample, in the order of the dataset."
            )
        if self.alpha == 1:
            return everything(candidates)
        return race(self._odds[self.labels[candidates]], part(self.alpha, candidates.shape[1]), rng)


def _checked(labels: Any) -> Tensor:
    try:
        found = torch.as_tensor(labels, device=CPU).detach()
    except (TypeError, ValueError, RuntimeError):
        found = torch.empty(0, 0)
    if found.dim() != 1 or not len(found) or found.is_floating_point() or found.is_complex():
        raise TypeError(f"ClassBalanced: labels are {_shown(labels)}. Pass one whole number per sample: its class.")
    if int(found.min()) < 0:
        raise ValueError(f"ClassBalanced: labels contain {int(found.min())}. Number the classes from 0.")
    return found.long()


def _shown(labels: Any) -> str:
    if isinstance(labels, Tensor):
        return f"a tensor of shape {tuple(labels.shape)} and type {labels.dtype}"
    return f"{labels!r:.60}"
