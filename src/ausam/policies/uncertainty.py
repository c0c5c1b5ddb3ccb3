"""Uncertainty sampling (Raju et al. 2021): keep the samples that the model is least sure of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Generator, Tensor

from ausam.common.settings import Part, PositiveCount, validate
from ausam.policies.base import Choice, everything, part
from ausam.policies.pruning import largest, positions

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


@dataclass(frozen=True)
class Uncertainty:
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

    A sample that is left out keeps its score, so it returns only when the model becomes surer of others than it was of
    this one. EpsilonGreedy and UCB explore. The choice reads all scores at once, so the first batch of its epoch waits
    for it. Cost: a fraction alpha of the samples, after epoch 0.
    """

    alpha: Part = 0.5
    period: PositiveCount = 10
    signal: ClassVar[str] = "uncertainty"
    scope: ClassVar[str] = "epoch"
    decay: ClassVar[float] = 0.0
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
        """The least confident samples."""
        if epoch == 0 or self.alpha == 1:
            return everything(candidates)
        k = part(self.alpha, candidates.shape[1])
        return positions(largest(scores.of(candidates[0]), k, rng)), None
