"""Repeated random subsets (RS2, ICLR 2024): go through a shuffled order slice by slice, then shuffle again."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Generator, Tensor

from ausam.common.settings import OneOf, Part
from ausam.common.tensors import CPU
from ausam.policies.base import Policy
from ausam.policies.draws import Choice, kept_count

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores

# Keeps rounds short: alpha is rounded to the nearest fraction with at most this denominator (or 1 / alpha, if larger).
LONGEST_ROUND = 100


@dataclass(frozen=True)
class Repeated(Policy):
    """A new fraction ``alpha`` of the samples in each epoch: every sample exactly once in ``1 / alpha`` epochs.

        alpha = p / q
        epoch j of a round of q epochs uses the positions from floor(j p N / q) up to floor((j + 1) p N / q)

    of one shuffled order of the ``N`` samples, which wraps around at its end. Each round shuffles again. Every sample
    is used exactly ``p`` times per round, and after any epoch the counts of two samples differ by at most one. Okanovic
    et al.: Repeated Random Sampling for Minimizing the Time-to-Accuracy of Learning, ICLR 2024, where ``p`` is 1.

    >>> from ausam import Repeated, SelectiveBatchSampler
    >>> sampler = SelectiveBatchSampler(10, batch_size=4, policy=Repeated(alpha=0.5))
    >>> epochs = [[i for batch in sampler for i in batch] for _ in range(2)]
    >>> len(epochs[0]), sorted(epochs[0] + epochs[1])
    (5, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])

    Arguments:
        alpha: fraction of the samples that an epoch uses, in (0, 1]. It is rounded to the nearest fraction ``p / q``
            with a denominator of at most 100 (or ``1 / alpha``, if that is more). 0.5, 0.25, 0.4 and 0.75 are exact.
        batch: "full": mini-batches keep their size, so an epoch has fewer of them. "reduced": every mini-batch has
            ``max(1, int(alpha * batch_size))`` samples. If ``alpha * batch_size`` is whole, an epoch has as many steps
            as with Random or AUSampling.

    With "full" it is ordinary training for a fraction alpha of the epochs, apart from the learning rate schedule. This
    is the simplest baseline, and a strong one. An epoch has at least one sample. It cannot choose inside a loaded batch
    (``sampler.pick``) or a stream. Cost: a fraction alpha of the samples.
    """

    alpha: Part = 0.5
    batch: Annotated[str, OneOf(("full", "reduced"))] = "full"
    scope = "epoch"
    full_epochs = 0

    @property
    def fraction(self) -> Fraction:
        """Alpha as ``p / q``, in integers: with rounded sums, a sample could be missed or repeated."""
        return Fraction(self.alpha).limit_denominator(max(LONGEST_ROUND, ceil(1 / self.alpha)))

    @property
    def kept(self) -> float:
        """Fraction of the samples used."""
        return float(self.fraction)

    def count(self, epoch: int, n: int) -> int:
        """Number of positions of the epoch."""
        start, stop = self._span(epoch, n)
        return stop - start

    def order_id(self, epoch: int) -> int:
        """The round of the epoch: all its epochs share one order."""
        return epoch // self.fraction.denominator

    def size(self, n: int) -> int:
        """Samples per mini-batch."""
        return n if self.batch == "full" else kept_count(self.alpha, n)

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:  # noqa: ARG002
        """The positions of the epoch in the order of its round."""
        n = candidates.shape[1]
        if n != len(scores):
            raise ValueError(
                "Repeated goes through an order of all samples, so it cannot choose inside a loaded batch. "
                "Iterate over the sampler, or use Random(alpha)."
            )
        return (torch.arange(*self._span(epoch, n), device=CPU) % n)[None], None

    def _span(self, epoch: int, n: int) -> tuple[int, int]:
        p, q = self.fraction.as_integer_ratio()
        j = epoch % q
        start, stop = j * p * n // q, (j + 1) * p * n // q
        return start, max(start + 1, stop)
