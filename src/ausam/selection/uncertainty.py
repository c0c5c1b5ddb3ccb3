"""Uncertainty sampling (Raju et al. 2021): keep the samples that the model is least sure of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from ausam.selection.policy import Choice, everything, part
from ausam.selection.pruning import largest, positions
from ausam.selection.scores import Scores
from ausam.settings import Part, PositiveCount, check


@dataclass(frozen=True)
class Uncertainty:
    """The part ``alpha`` of the dataset with the least confident predictions, chosen again every ``period`` epochs.

        s_i = 1 - max_c softmax(z_i)_c  at the latest visit of i;  kept = the max(1, int(alpha N)) largest of all N

    The first epoch uses every sample; later one that has no score yet comes first. ``loss_fn`` must return
    ``(losses, outputs)``. Raju, Daruwalla, Lipasti: Accelerating Deep Learning with Dynamic Data Pruning, 2021.

    >>> from ausam import SelectiveBatchSampler, Uncertainty
    >>> [len(batch) for batch in SelectiveBatchSampler(10, batch_size=4, policy=Uncertainty(alpha=0.5))]
    [4, 4, 2]

    Arguments:
        alpha: part of the dataset that is kept, in (0, 1].
        period: epochs that a choice holds for, >= 1.

    Scores of samples that are left out stand still, so they return only when others become surer than they were:
    EpsilonGreedy and UCB explore. A choice is made among all samples, from all scores at once: the first batch of its
    epoch waits for it. Part of the work: alpha, after epoch 0.
    """

    alpha: Part = 0.5
    period: PositiveCount = 10
    signal: ClassVar[str] = "uncertainty"
    scope: ClassVar[str] = "epoch"
    decay: ClassVar[float] = 0.0
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
        """The least confident."""
        if epoch == 0 or self.alpha == 1:
            return everything(candidates)
        k = part(self.alpha, candidates.shape[1])
        return positions(largest(scores.of(candidates[0]), k, rng)), None
