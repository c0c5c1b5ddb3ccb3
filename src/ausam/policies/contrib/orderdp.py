"""OrderDP (ICLR 2026): the samples with the largest losses of a random part of the dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Generator, Tensor

from ausam.common.settings import Part
from ausam.policies.base import Policy
from ausam.policies.draws import Choice, kept_count, mask_positions, random_positions, top_k_mask

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


@dataclass(frozen=True)
class OrderDP(Policy):
    """Draw a random fraction ``s`` of the dataset in each epoch, and keep the fraction ``q`` with the largest losses.

        S = max(1, int(s N)) of the N samples, all equally likely;  kept = the max(1, int(q |S|)) largest l_i of S

    where ``l_i`` is the loss of ``i`` at its latest visit. The first epoch leaves out samples too. Samples without a
    loss come first. Ties are broken at random. No weights. Xu et al.: OrderDP, ICLR 2026, after its official code.

    >>> from ausam import OrderDP, SelectiveBatchSampler
    >>> [len(batch) for batch in SelectiveBatchSampler(100, batch_size=32, policy=OrderDP(s=0.75, q=0.85))]
    [32, 31]

    Arguments:
        s: fraction of the dataset to draw, in (0, 1].
        q: fraction of the drawn samples to keep, in (0, 1].

    With q = 1 it is a random subset of the dataset; with s = 1, the largest losses of all. Biased towards hard samples:
    avoid a small q with noisy labels. The choice reads all scores at once, so the first batch of an epoch waits for it.
    Cost: a fraction s q of the samples.
    """

    s: Part = 0.75
    q: Part = 0.85
    scope = "epoch"
    decay = 0.0
    full_epochs = 0
    reads_scores = True

    @property
    def kept(self) -> float:
        """Fraction of the samples used."""
        return self.s * self.q

    def count(self, epoch: int, n: int) -> int:  # noqa: ARG002
        """A fraction q of a fraction s, in every epoch."""
        return kept_count(self.q, kept_count(self.s, n))

    def select(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:
        """The largest losses of a random subset."""
        n = candidates.shape[1]
        drawn = random_positions(n, kept_count(self.s, n), rng)
        mask = top_k_mask(scores.of(candidates[0].index_select(0, drawn)), self.count(epoch, n), rng)
        return drawn.index_select(0, mask_positions(mask)[0])[None].long(), None
