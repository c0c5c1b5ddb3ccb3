"""A random subset of every mini-batch that balances the classes: the usual control for long-tailed data."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from ausam.common.margin import class_labels
from ausam.common.settings import Part
from ausam.policies.base import Policy, require_as_many
from ausam.policies.draws import Choice, kept_count, weighted_sample

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


@dataclass(frozen=True)
class ClassBalanced(Policy):
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

    Use it as a baseline on long-tailed data. It needs the labels, which AUSampling does not. A rare class can only be
    drawn from a mini-batch that contains it. The classes are therefore balanced only if alpha is small compared with
    their share of the data. Samples wrongly labelled as a rare class are drawn as often as that class. Cost: a fraction
    alpha of the samples.
    """

    labels: Any = field(repr=False, compare=False)
    alpha: Part = 0.5
    full_epochs = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "labels", torch.from_numpy(class_labels("ClassBalanced", self.labels)))

    @cached_property
    def _odds(self) -> Tensor:
        """Odds of each class."""
        odds: Tensor = 1.0 / self.labels.bincount()
        return odds

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:
        """As every policy, once the number of labels is known to fit."""
        require_as_many(self.labels, scores, "ClassBalanced")
        return super().choose(scores, epoch, candidates, rng)

    def select(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:  # noqa: ARG002
        """A weighted draw with the odds of each sample's class."""
        k = kept_count(self.alpha, candidates.shape[1])
        return weighted_sample(self._odds[self.labels[candidates]], k, rng)
