"""Epsilon-greedy pruning (Raju et al. 2021): mostly the largest scores, and a few samples at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from ausam.selection.policy import Choice, everything, part
from ausam.selection.pruning import largest, positions, some
from ausam.selection.scores import Scores
from ausam.selection.signals import Signal
from ausam.settings import Decay, Part, PositiveCount, Probability, check


@dataclass(frozen=True)
class EpsilonGreedy:
    """Of ``M = max(1, int(alpha N))`` samples, ``int(eps M)`` at random and the rest by their averaged loss.

        s_i <- decay s_i + (1 - decay) u_i  at each visit;  kept = the M - int(eps M) largest, int(eps M) of the others

    The first epoch uses every sample; later one that has no score yet comes first.
    Raju, Daruwalla, Lipasti: Accelerating Deep Learning with Dynamic Data Pruning, 2021.

    >>> from ausam import EpsilonGreedy, SelectiveBatchSampler
    >>> [len(batch) for batch in SelectiveBatchSampler(10, batch_size=4, policy=EpsilonGreedy(alpha=0.5))]
    [4, 4, 2]

    Arguments:
        alpha: part of the dataset that is kept, in (0, 1].
        eps: part of the kept samples that is drawn at random, in [0, 1].
        signal: what u is: any of TopLoss's signals. "forgetting" counts events instead of averaging.
        decay: weight of the past in a score, in [0, 1).
        period: epochs that a choice holds for, >= 1.

    A choice is made among all samples, from all scores at once: the first batch of its epoch waits for it. Part of the
    work: alpha, after epoch 0.
    """

    alpha: Part = 0.5
    eps: Probability = 0.1
    signal: Signal = "loss"
    decay: Decay = 0.2
    period: PositiveCount = 10
    scope: ClassVar[str] = "epoch"
    spread: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self)

    @property
    def kept(self) -> float:
        """Part of the samples that is used, after the first epoch."""
        return self.alpha

    def count(self, epoch: int, n: int) -> int:
        """All in the first epoch, then the part alpha."""
        return n if epoch == 0 else part(self.alpha, n)

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:
        """The best, and some of the others."""
        if epoch == 0 or self.alpha == 1:
            return everything(candidates)
        m = part(self.alpha, candidates.shape[1])
        marks = largest(scores.of(candidates[0]), m - int(self.eps * m), rng)
        marks[some((~marks).nonzero()[:, 0], int(self.eps * m), rng)] = True
        return positions(marks), None
