"""Keep the samples with the largest scores in every mini-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Generator, Tensor

from ausam.common.settings import Part
from ausam.policies.base import Policy
from ausam.policies.draws import Choice, kept_count, unseen_first
from ausam.policies.signals import Signal

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


@dataclass(frozen=True)
class TopLoss(Policy):
    """Keep the ``max(1, int(alpha n))`` samples of each mini-batch whose latest loss, or other signal, is largest.

        kept = the k largest of s_1 .. s_n,  k = max(1, int(alpha n)),  s_i = the signal at the latest visit of i

    The first epoch uses every sample. Later, samples without a score come first. Kawaguchi, Lu: Ordered SGD, AISTATS
    2020, ranks by the losses of the current forward pass. This policy ranks by those of the latest visit.

    >>> from ausam import SelectiveBatchSampler, TopLoss
    >>> [len(batch) for batch in SelectiveBatchSampler(10, batch_size=4, policy=TopLoss(alpha=0.5))]
    [4, 4, 2]

    Arguments:
        alpha: fraction of each mini-batch to keep, in (0, 1].
        signal: the signal to rank by: "loss", "perturbed", "sharpness", "signed", "uncertainty", "el2n", "wrong",
            "forgetting" or "progress", or your own function of a Feedback.

    Biased towards hard samples on purpose, so avoid it with noisy labels. Cost: a fraction alpha of the samples, after
    epoch 0.
    """

    alpha: Part = 0.5
    signal: Signal = "loss"
    decay = 0.0
    reads_scores = True

    def select(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:  # noqa: ARG002
        """The largest of each row. Among equals the first, which is fair because rows are in random order."""
        ranking = unseen_first(scores.of(candidates)).sort(dim=1, descending=True, stable=True).indices
        return ranking[:, : kept_count(self.alpha, candidates.shape[1])].sort(dim=1).values, None
