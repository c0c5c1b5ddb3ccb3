"""Keep the samples with the largest scores in every mini-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Generator, Tensor

from ausam.common.settings import Part, validate
from ausam.policies.base import Choice, everything, part
from ausam.policies.pruning import unseen_first
from ausam.policies.signals import Signal

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


@dataclass(frozen=True)
class TopLoss:
    """Keep the ``max(1, int(alpha n))`` samples of each mini-batch whose latest loss, or other signal, is largest.

        kept = the k largest of s_1 .. s_n,  k = max(1, int(alpha n)),  s_i = the signal at the latest visit of i

    The first epoch uses every sample. Later, samples without a score come first. Kawaguchi, Lu: Ordered SGD, AISTATS
    2020, ranks by the losses of the current forward pass; this policy ranks by those of the latest visit.

    >>> from ausam import SelectiveBatchSampler, TopLoss
    >>> [len(batch) for batch in SelectiveBatchSampler(10, batch_size=4, policy=TopLoss(alpha=0.5))]
    [4, 4, 2]

    Arguments:
        alpha: fraction of each mini-batch to keep, in (0, 1].
        signal: the signal to rank by: "loss", "perturbed", "sharpness", "signed", "uncertainty", "el2n", "wrong",
            "forgetting" or "progress".

    Biased towards hard samples on purpose, so avoid it with noisy labels. Cost: a fraction alpha of the samples, after
    epoch 0.
    """

    alpha: Part = 0.5
    signal: Signal = "loss"
    scope: ClassVar[str] = "batch"
    period: ClassVar[int] = 1
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

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:  # noqa: ARG002
        """The largest of each row; among equals the first, which is fair because rows are in random order."""
        if epoch == 0 or self.alpha == 1:
            return everything(candidates)
        ranking = unseen_first(scores.of(candidates)).sort(dim=1, descending=True, stable=True).indices
        return ranking[:, : part(self.alpha, candidates.shape[1])].sort(dim=1).values, None
