"""Dynamic data pruning (Raju et al. 2021): the largest upper confidence bounds of all samples, and a few at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Generator, Tensor

from ausam.common.settings import Decay, NonNegative, Part, PositiveCount, Probability
from ausam.policies.base import Policy
from ausam.policies.draws import Choice, kept_count, mask_positions, random_subset, top_k_mask
from ausam.policies.signals import Signal

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


class _Pruning(Policy):
    """The common rule: ``int(eps M)`` of the ``M`` kept samples at random, the others by mean plus ``c`` variances."""

    scope = "epoch"
    reads_scores = True
    c = 0.0
    eps = 0.0

    def select(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:  # noqa: ARG002
        """The largest bounds, and some of the others at random."""
        bound = scores.of(candidates[0])
        if self.c and scores.spread is not None:
            bound.add_(scores.spread.index_select(0, candidates[0]), alpha=self.c)
        k = kept_count(self.kept, len(bound))
        at_random = int(self.eps * k)
        mask = top_k_mask(bound, k - at_random, rng)
        if at_random:
            mask.index_fill_(0, random_subset(mask_positions(~mask)[0], at_random, rng), True)
        return mask_positions(mask), None


@dataclass(frozen=True)
class EpsilonGreedy(_Pruning):
    """Keep ``M = max(1, int(alpha N))`` samples: ``int(eps M)`` at random, the others by their average loss.

        s_i <- decay s_i + (1 - decay) u_i  at each visit;  kept = the M - int(eps M) largest, int(eps M) of the others

    The first epoch uses every sample. Later, samples without a score come first.
    Raju, Daruwalla, Lipasti: Accelerating Deep Learning with Dynamic Data Pruning, 2021.

    >>> from ausam import EpsilonGreedy, SelectiveBatchSampler
    >>> [len(batch) for batch in SelectiveBatchSampler(10, batch_size=4, policy=EpsilonGreedy(alpha=0.5))]
    [4, 4, 2]

    Arguments:
        alpha: fraction of the dataset to keep, in (0, 1].
        eps: fraction of the kept samples that is drawn at random, in [0, 1].
        signal: the signal u: any of TopLoss's. "forgetting" counts events instead of averaging.
        decay: weight of the past in a score, in [0, 1).
        period: number of epochs that use the same choice, >= 1.

    The choice reads all scores at once, so the first batch of its epoch waits for it. Cost: a fraction alpha of the
    samples, after epoch 0.
    """

    alpha: Part = 0.5
    eps: Probability = 0.1
    signal: Signal = "loss"
    decay: Decay = 0.2
    period: PositiveCount = 10


@dataclass(frozen=True)
class UCB(_Pruning):
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
    spread = True


@dataclass(frozen=True)
class Uncertainty(_Pruning):
    """Keep the fraction ``alpha`` of the dataset with the least confident predictions, chosen every ``period`` epochs.

        s_i = 1 - max_c softmax(z_i)_c  at the latest visit of i;  kept = the max(1, int(alpha N)) largest of all N

    The first epoch uses every sample. Later, samples without a score come first. ``loss_fn`` must return
    ``(losses, outputs)``. Raju, Daruwalla, Lipasti: Accelerating Deep Learning with Dynamic Data Pruning, 2021.

    >>> from ausam import SelectiveBatchSampler, Uncertainty
    >>> [len(batch) for batch in SelectiveBatchSampler(10, batch_size=4, policy=Uncertainty(alpha=0.5))]
    [4, 4, 2]

    Arguments:
        alpha: fraction of the dataset to keep, in (0, 1].
        period: number of epochs that use the same choice, >= 1.

    A sample that is left out keeps its score. It returns only when the model becomes more certain of others than it was
    of this one. EpsilonGreedy and UCB explore. The choice reads all scores at once, so the first batch of its epoch
    waits for it. Cost: a fraction alpha of the samples, after epoch 0.
    """

    alpha: Part = 0.5
    period: PositiveCount = 10
    signal = "uncertainty"
    decay = 0.0
