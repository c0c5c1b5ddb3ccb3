"""Pruning by an upper confidence bound (Raju et al. 2021): large scores, and scores that vary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Generator, Tensor

from ausam.common.settings import Decay, NonNegative, Part, PositiveCount, validate
from ausam.policies.base import Choice, everything, part
from ausam.policies.pruning import largest, positions
from ausam.policies.signals import Signal

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


@dataclass(frozen=True)
class UCB:
    """Keep the fraction ``alpha`` of the dataset with the largest mean plus ``c`` times variance of the loss.

        v_i <- decay v_i + (1 - decay) (u_i - m_i)^2,  then  m_i <- decay m_i + (1 - decay) u_i,  at each visit
        kept = the max(1, int(alpha N)) largest of m_i + c v_i                (first visit: v_i = 0, m_i = u_i)

    The first epoch uses every sample. Later, samples without a score come first.
    Raju, Daruwalla, Lipasti: Accelerating Deep Learning with Dynamic Data Pruning, 2021.

    >>> from ausam import UCB, SelectiveBatchSampler
    >>> [len(batch) for batch in SelectiveBatchSampler(10, batch_size=4, policy=UCB(alpha=0.5))]
    [4, 4, 2]

    Arguments:
        alpha: fraction of the dataset to keep, in (0, 1].
        c: weight of the variance, >= 0.
        signal: the signal u: any of TopLoss's. With "forgetting" m counts the events, and v averages the changes.
        decay: weight of the past, in [0, 1).
        period: number of epochs that use the same choice, >= 1.

    The choice reads all scores at once, so the first batch of its epoch waits for it. Needs four more bytes per sample.
    Cost: a fraction alpha of the samples, after epoch 0.
    """

    alpha: Part = 0.5
    c: NonNegative = 1.0
    signal: Signal = "loss"
    decay: Decay = 0.2
    period: PositiveCount = 10
    scope: ClassVar[str] = "epoch"
    spread: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate(self)

    @property
    def kept(self) -> float:
        """Fraction of the samples used after the first epoch."""
        return self.alpha

    def count(self, epoch: int, n: int) -> int:
        """All samples in the first epoch, then a fraction alpha."""
        return n if epoch == 0 else part(self.alpha, n)

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:
        """The largest bounds."""
        if epoch == 0 or self.alpha == 1 or scores.spread is None:
            return everything(candidates)
        bound = scores.of(candidates[0]).add_(scores.spread[candidates[0]], alpha=self.c)
        return positions(largest(bound, part(self.alpha, candidates.shape[1]), rng)), None
