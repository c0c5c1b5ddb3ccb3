"""Epsilon-greedy pruning (Raju et al. 2021): mostly the largest scores, and a few samples at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Generator, Tensor

from ausam.common.settings import Decay, Part, PositiveCount, Probability, validate
from ausam.policies.base import Choice, everything, part
from ausam.policies.pruning import largest, positions, some
from ausam.policies.signals import Signal

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


@dataclass(frozen=True)
class EpsilonGreedy:
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
    scope: ClassVar[str] = "epoch"
    spread: ClassVar[bool] = False

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
        """The largest scores, and some of the others at random."""
        if epoch == 0 or self.alpha == 1:
            return everything(candidates)
        m = part(self.alpha, candidates.shape[1])
        marks = largest(scores.of(candidates[0]), m - int(self.eps * m), rng)
        marks[some((~marks).nonzero()[:, 0], int(self.eps * m), rng)] = True
        return positions(marks), None
