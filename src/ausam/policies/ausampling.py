"""AUSAM's sampling (Deng et al., AAAI 2025): samples whose loss the perturbation changes much are drawn more often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from torch import Generator, Tensor

from ausam.common.settings import (
    Count,
    Decay,
    Epochs,
    Flag,
    NonNegative,
    OneOf,
    Part,
    Positive,
    PositiveCount,
    Probability,
    Range,
)
from ausam.policies.base import Policy, in_epochs
from ausam.policies.draws import Choice, kept_count, weighted_sample

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


@dataclass(frozen=True)
class AUSampling(Policy):
    """Draw a part of each mini-batch with odds that follow the samples' average loss change under SAM's perturbation.

        g_i = mean over visits of |L_i(w + e) - L_i(w)|                       (score, the paper's ADLP)
        x_i = (g_i - min g) / (max g - min g)                                 (min and max over the mini-batch)
        odds_i = s_min + x_i (s - s_min)
        s = s_min + min(1, epoch / ramp) (s_max - s_min)                      (epoch counts from 0)

    and ``max(1, int(alpha n))`` of ``n`` samples are drawn without replacement. The first epoch uses every sample.
    Deng, Pang, Zhang, Guo: Asymptotic Unbiased Sample Sampling to Speed Up Sharpness-Aware Minimization, AAAI 2025.

    >>> from ausam import AUSampling, SelectiveBatchSampler
    >>> sampler = SelectiveBatchSampler(10, batch_size=4, policy=AUSampling(alpha=0.5), epochs=30)
    >>> [len(batch) for batch in sampler]
    [4, 4, 2]

    Arguments:
        alpha: fraction of each mini-batch to keep, in (0, 1].
        s_min: lower bound of the odds, in [0, s_max]. The paper: 0.1.
        s_max: upper bound of the odds, > 0. The paper: 1, or 0.5 for small networks. With ``odds="proportional"``, the
            odds of a sample with the mean score.
        ramp: epochs over which the upper bound rises from s_min to s_max (the paper's E_start). It is a fraction of all
            epochs, below 1, or a whole number of epochs, >= 0. The official code has 30 of 200, so 0.15. A fraction is
            rounded to whole epochs, at least one, and needs the number of epochs.
        full_epochs: number of initial epochs that use every sample, >= 0. The official code: 1. With 0 the first epoch
            is drawn uniformly.
        ema: weight of the past in an exponential moving average, in [0, 1). It forgets the large values of early
            training. 0 keeps the latest visit alone. None (default) takes the mean of all visits, as the paper.
        unbiased: weight each kept sample by the inverse of its inclusion probability. The gradient estimate of the
            mini-batch is then unbiased at any fixed weights. Pass ``weight=sampler.weight(index)`` to ``opt.backward``.
            The paper does not weight. Needs s_min > 0 and four more bytes per sample. See
            :func:`ausam.policies.draws.weighted_sample` for the estimator.
        trim: None (the paper), or a quantile in (0, 1). Samples that score above it in their mini-batch, where wrong
            labels concentrate, get the lowest odds. The others are normalised without them.
        mix: fraction of each draw's probability that is uniform, in [0, 1]. The paper: 0.
        score: "sharpness" (the paper). "signed": ``max(0, L_i(w + e) - L_i(w))``. "progress": how much the loss of the
            sample fell between its last two visits, known from the second visit on.
        odds: how x follows the score: "minmax" (the paper). "rank": the rank of the score in the mini-batch, from 0 to
            1. "proportional": the score divided by its mean over the mini-batch, at least 0. A few scores far above
            the others flatten min-max odds, but not the odds of the other two.
        epochs: number of epochs of the whole training, >= 1. If None, what ``SelectiveBatchSampler(epochs=...)`` says.
            Not kept if the ramp is a whole number, which does not need it.

    A sample without a score gets the mean of its mini-batch. Equal scores mean uniform sampling. Needs a method that
    evaluates the loss at perturbed weights, unless score is "progress". Cost: a fraction alpha of the samples, after
    the first epoch.
    """

    alpha: Part = 0.5
    s_min: NonNegative = 0.1
    s_max: Positive = 1.0
    ramp: Epochs = 0.15
    full_epochs: Count = 1
    ema: Decay | None = None
    unbiased: Flag = False
    trim: Annotated[float, Range(low=0.0, high=1.0, low_open=True, high_open=True)] | None = None
    mix: Probability = 0.0
    score: Annotated[str, OneOf(("sharpness", "signed", "progress"))] = "sharpness"
    odds: Annotated[str, OneOf(("minmax", "rank", "proportional"))] = "minmax"
    epochs: PositiveCount | None = None
    reads_scores = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ramp == int(self.ramp):  # then the epochs have no effect, and the policy is the same without them
            object.__setattr__(self, "epochs", None)
        if self.s_min > self.s_max:
            raise ValueError(
                f"AUSampling: s_min is {self.s_min} and s_max is {self.s_max}, but they are the lower and upper bound "
                "of the odds. Use s_min <= s_max."
            )
        if self.unbiased and self.s_min == 0:
            raise ValueError(
                "AUSampling: unbiased=True divides by inclusion probabilities, and s_min=0 makes some of them 0. "
                "Use s_min > 0."
            )

    @property
    def signal(self) -> str:  # type: ignore[override]
        """The signal that the scores average."""
        return self.score

    @property
    def decay(self) -> float:  # type: ignore[override]
        """Weight of a sample's past in its score."""
        return 1.0 if self.ema is None else self.ema

    @property
    def ramp_epochs(self) -> int:
        """The ramp as a whole number of epochs."""
        return in_epochs(self, "ramp", self.epochs)

    def fit(self, scores: Scores, epoch: int) -> tuple[float, ...]:  # noqa: ARG002
        """Nothing. But a ramp that cannot be honoured raises an error before the first batch."""
        if self.alpha < 1:
            _ = self.ramp_epochs
        return ()

    def select(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:
        """A weighted draw without replacement in each mini-batch."""
        odds = self.odds_of(scores.of(candidates), epoch)
        return weighted_sample(odds, kept_count(self.alpha, candidates.shape[1]), rng, weigh=self.unbiased)

    def odds_of(self, g: Tensor, epoch: int) -> Tensor:
        """The odds of each row of scores: the paper's equation 8, with the upper bound ramped up.

        Two additions to the paper: ``trim`` changes the scores beforehand, and ``mix`` changes the odds afterwards.
        """
        ramp = self.ramp_epochs
        rise = min(1.0, epoch / ramp) if ramp else 1.0
        upper = self.s_min + rise * (self.s_max - self.s_min)
        if not g.sum().isfinite():
            g = torch.where(g.isnan(), g.nanmean(dim=1, keepdim=True), g).nan_to_num_(0.0)
        if self.trim is not None:
            g = torch.where(g > g.quantile(self.trim, dim=1, keepdim=True), g.amin(dim=1, keepdim=True), g)
        odds = NORMALISED[self.odds](g).mul_(upper - self.s_min).add_(self.s_min)
        low, high = g.aminmax(dim=1, keepdim=True)
        equal = (high <= low) | (upper <= 0) | odds[:, :1].isnan()
        if equal.any():
            odds.masked_fill_(equal, 1.0)
        if self.mix:
            odds = (1 - self.mix) * odds / odds.sum(dim=1, keepdim=True) + self.mix / odds.shape[1]
        return odds


def min_max(g: Tensor) -> Tensor:
    """Each row from 0 to 1 between its smallest and its largest score. NaN if all are equal."""
    low, high = g.aminmax(dim=1, keepdim=True)
    return (g - low).div_(high - low)


def rank(g: Tensor) -> Tensor:
    """The rank of each score in its row, from 0 to 1. Equal scores share their mean rank."""
    g = g.contiguous()
    ascending = torch.from_numpy(np.sort(g.numpy(), axis=1))  # faster than torch's
    below, up_to = torch.searchsorted(ascending, g), torch.searchsorted(ascending, g, right=True)
    return (below + up_to - 1).to(g.dtype).div_(2 * max(1, g.shape[1] - 1))


def proportional(g: Tensor) -> Tensor:
    """Each score divided by the mean of its row. Scores below 0 count as 0, and NaN stands for a row of zeros."""
    positive = g.clamp_min(0.0)
    return positive / positive.mean(dim=1, keepdim=True)


NORMALISED = {"minmax": min_max, "rank": rank, "proportional": proportional}
