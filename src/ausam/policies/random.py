"""A random subset of every mini-batch: the baseline that every other policy has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from ausam.common.settings import Count, Part
from ausam.common.tensors import CPU
from ausam.policies.base import Policy
from ausam.policies.draws import Choice, kept_count, weighted_sample

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


@dataclass(frozen=True)
class Random(Policy):
    """Keep ``max(1, int(alpha n))`` of the ``n`` samples of each mini-batch, all equally likely.

    The paper's SAM+Random, with alpha 0.5.

    >>> from ausam import Random, SelectiveBatchSampler
    >>> [len(batch) for batch in SelectiveBatchSampler(10, batch_size=4, policy=Random(alpha=0.5))]
    [2, 2, 1]

    Arguments:
        alpha: fraction of each mini-batch to keep, in (0, 1].
        full_epochs: number of initial epochs that use every sample, >= 0. 1 makes it the random-subset baseline of a
            policy that uses every sample in its first epoch, such as AUSampling.

    The mean gradient stays unbiased, so no weights are needed.
    """

    alpha: Part = 0.5
    full_epochs: Count = 0

    def select(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:  # noqa: ARG002
        """A draw with equal odds for all."""
        equal = torch.ones(candidates.shape, dtype=torch.float32, device=CPU)
        return weighted_sample(equal, kept_count(self.alpha, candidates.shape[1]), rng)
