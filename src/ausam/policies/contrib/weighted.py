"""Weighted sampling: draw by weights that you set during training, without or with replacement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Generator, Tensor

from ausam.common.settings import Decay, Flag, Positive, PositiveCount
from ausam.common.tensors import CPU
from ausam.policies.base import Policy
from ausam.policies.draws import Choice, exponential_times, kept_count, mask_positions, top_k_mask
from ausam.policies.signals import Signal, signal_name

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores

PART = 1 << 12  # weights that are summed and searched at a time, when drawing with replacement


@dataclass(frozen=True)
class Weighted(Policy):
    """Draw the samples of each epoch in proportion to weights that you set, at any time during training.

        P(next draw is i) = w_i / sum of w_j      (with replacement: over all j; without: over those not drawn yet)

    It is ``torch.utils.data.WeightedRandomSampler`` with weights that may change from epoch to epoch, over any number
    of processes, and resumable in the middle of an epoch.

    >>> import torch
    >>> from ausam import SelectiveBatchSampler, Weighted
    >>> sampler = SelectiveBatchSampler(100, batch_size=10, policy=Weighted(alpha=0.5))
    >>> weights = torch.ones(100)
    >>> weights[:50] = 0
    >>> sampler.scores.set(torch.arange(100), weights)                # again whenever they change
    >>> min(i for batch in sampler for i in batch) >= 50              # half an epoch, each sample at most once
    True

    Arguments:
        alpha: length of an epoch as a fraction of the dataset, > 0. Above 1 only with replacement.
        length: number of samples in an epoch, >= 1. If None, ``max(1, int(alpha N))``.
        replacement: whether a sample may be drawn several times in an epoch.
        signal: If None, the weights change only by ``sampler.scores.set(index, values)``. Otherwise a signal, as in
            TopLoss, or your own function of a Feedback: ``sampler.update`` then sets the weights from each step.
        decay: weight of the past in a score that follows a signal, in [0, 1).

    A weight must be finite and >= 0. A sample of weight 0 is never drawn. A sample without a weight gets the mean of
    the others. Without any weight, the draw is uniform. Set weights in any process and for any samples: all processes
    have them when the next pass begins. Call ``sampler.update`` all the same: it records which batches were consumed.
    The losses are not reweighted. Cost: a fraction alpha of the samples.
    """

    alpha: Positive = 1.0
    length: PositiveCount | None = None
    replacement: Flag = True
    signal: Signal | None = None
    decay: Decay = 0.0
    scope = "epoch"
    full_epochs = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.replacement and self.alpha > 1:
            raise ValueError(
                f"Weighted: alpha is {self.alpha:g}, but without replacement an epoch has at most every sample once. "
                "Use alpha <= 1 or replacement=True."
            )
        if self.length is not None and self.alpha != 1.0:
            raise ValueError(
                f"Weighted: length is {self.length} and alpha is {self.alpha:g}, but both give the length of an epoch. "
                "Pass one of them."
            )

    def is_full(self, epoch: int) -> bool:  # noqa: ARG002
        """Never: a sample of weight 0 is left out of any epoch."""
        return False

    def count(self, epoch: int, n: int) -> int:  # noqa: ARG002
        """The length of an epoch."""
        return self.length or kept_count(self.alpha, n)

    def select(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:
        """Draws in proportion to the weights."""
        weights = self._weights(scores, candidates[0])
        k, n = self.count(epoch, len(weights)), len(weights)
        if self.replacement:
            return _with_replacement(weights, k, rng), None
        positive = int(weights.count_nonzero())
        if positive < k:
            raise ValueError(
                f"Weighted draws {k} of {n} samples without replacement, but {positive} have a weight above 0. "
                f"Use a smaller {'alpha' if self.length is None else 'length'}, replacement=True or more positive "
                "weights."
            )
        # As in weighted_sample, the k fastest win. A mask takes less memory, and breaks ties at random.
        return mask_positions(top_k_mask(exponential_times(weights, rng).neg_(), k, rng)), None

    def _weights(self, scores: Scores, index: Tensor) -> Tensor:
        weights = scores.of(index)
        missing = weights.isnan()
        if missing.all():
            return torch.ones(len(weights), device=CPU)
        if missing.any():
            weights[missing] = weights[~missing].double().mean().float()
        if float(weights.min()) < 0 or not math.isfinite(float(weights.max())):
            bad = int(((weights < 0) | weights.isinf()).nonzero()[0])
            source = "sampler.scores.set" if self.signal is None else f"the signal {signal_name(self.signal)}"
            raise ValueError(
                f"The weight of sample {int(index[bad])} is {float(weights[bad]):g}, from {source}. Weights must be "
                "finite and >= 0."
            )
        if not float(weights.max()):
            raise ValueError("All weights are 0, so no sample can be drawn. Set at least one above 0.")
        return weights.div_(float(weights.max()))  # a sum of large weights would overflow


def _with_replacement(weights: Tensor, k: int, rng: Generator) -> Tensor:
    """``k`` positions in ascending order, each drawn in proportion to the weights."""
    # Running sums of exponential numbers, divided by the last, are sorted uniform numbers (Devroye 1986, chapter V.3).
    at = torch.rand(k + 1, generator=rng, dtype=torch.float64, device=CPU).neg_().log1p_().neg_().cumsum_(0).numpy()
    parts = torch.split(weights, PART)
    ends = np.cumsum([float(part.sum(dtype=torch.float64)) for part in parts])
    at *= ends[-1] / at[-1]
    # Part by part: a search among few sums is fast, and the positions take the place of the numbers looked up.
    at, drawn = at[:-1], at[:-1].view(np.int64)
    stops = np.searchsorted(at, ends, side="right")
    stops[ends == ends[-1]] = k  # whatever rounding does
    begin = 0
    for number, (part, stop) in enumerate(zip(parts, stops.tolist(), strict=True)):
        if stop == begin:
            continue
        before = ends[number - 1] if number else 0.0
        sums = part.double().cumsum(0).numpy() + before
        # side="right" skips weights of 0; rounding may reach the end, where the last positive weight is.
        found = np.searchsorted(sums, at[begin:stop], side="right")
        drawn[begin:stop] = np.minimum(found, np.searchsorted(sums, sums[-1])) + number * PART
        begin = stop
    return torch.from_numpy(drawn)[None]
