"""InfoBatch (Qin et al., ICLR 2024): leave out some of the well-learned samples, and weight the others of them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Generator, Tensor

from ausam.common.settings import OneOf, PositiveCount, Probability, Range
from ausam.common.tensors import CPU
from ausam.policies.base import Policy
from ausam.policies.draws import Choice, everything, mask_positions, random_subset

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


@dataclass(frozen=True)
class InfoBatch(Policy):
    """Leave out a random fraction of the samples whose latest loss is below the mean.

        W = {i: l_i < mean(l)};  int((1 - prune) |W|) of W stay, with weight 1 / (1 - prune);  all others, with weight 1

    so ``opt.backward(..., weight=sampler.weight(index))`` keeps the expected sum. First and last epochs use everything.
    Qin et al.: InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning, ICLR 2024.

    >>> from ausam import InfoBatch, SelectiveBatchSampler
    >>> sampler = SelectiveBatchSampler(50000, batch_size=128, policy=InfoBatch(prune=0.5, epochs=200))

    Arguments:
        prune: fraction of the well-learned samples to leave out, in [0, 1).
        anneal: fraction of the epochs, at the end, that uses every sample, in [0, 1]. No effect without ``epochs``.
        epochs: number of epochs of the whole training, >= 1. If None, what ``SelectiveBatchSampler(epochs=...)`` says,
            or never anneal.
        on: "first": the loss at w (the paper's SAM+Info*). "second": the loss at w + e (SAM+Info).

    The choice reads all scores at once, so the first batch of each epoch waits for it. It takes five bytes per sample
    on top of the scores, and more while it is made. Cost: about 0.65 of the samples with prune 0.5.
    """

    prune: Annotated[float, Range(low=0.0, high=1.0, high_open=True)] = 0.5
    anneal: Probability = 0.125
    epochs: PositiveCount | None = None
    on: Annotated[str, OneOf(("first", "second"))] = "first"
    scope = "epoch"
    reads_scores = True

    @property
    def signal(self) -> str:  # type: ignore[override]
        """The loss that decides."""
        return "loss" if self.on == "first" else "perturbed"

    @property
    def kept(self) -> float:
        """Approximate fraction of the samples used: losses are skewed, and some 70 % lie below their mean."""
        return 1 - 0.7 * self.prune

    def is_full(self, epoch: int) -> bool:
        """The first epoch, and the last ones if the number of epochs is known."""
        annealed = self.epochs is not None and epoch >= (1 - self.anneal) * self.epochs - 1e-9
        return epoch < self.full_epochs or annealed

    def count(self, epoch: int, n: int) -> int | None:
        """Known if the epoch uses every sample. Otherwise it depends on how many losses lie below their mean."""
        return n if self.is_full(epoch) else None

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:
        """As every policy, but with weights in full epochs too."""
        if self.is_full(epoch):
            return everything(candidates)[0], torch.ones(1, device=CPU).expand(candidates.shape)
        return self.select(scores, epoch, candidates, rng)

    def select(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:  # noqa: ARG002
        """All samples that are not well learned (or have no loss), and a random fraction of the others."""
        mean = scores.mean_of_latest()
        return prune_and_reweight(scores.last.index_select(0, candidates[0]) < mean, 1 - self.prune, rng)


def prune_and_reweight(mask: Tensor, keep: float, rng: Generator) -> Choice:
    """A random fraction ``keep`` of the samples in the mask with weight ``1 / keep``, and all others with weight 1."""
    prunable = mask_positions(mask)[0]
    stays = (~mask).index_fill_(0, random_subset(prunable, int(keep * len(prunable)), rng), True)
    del prunable  # eight bytes each
    kept = mask_positions(stays)
    return kept, torch.where(mask.index_select(0, kept[0]), 1 / keep, 1.0)[None]
