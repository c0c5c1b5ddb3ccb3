"""What a policy is, and the draw that several share."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Generator, Tensor

from ausam.selection.scores import Scores

Choice = tuple[Tensor, Tensor | None]


class Policy(Protocol):
    """A pure rule: which of the candidates are used. All memory is in the scores, which the sampler owns.

    A policy may also have

        scope: "batch" (default): choose inside each mini-batch; "epoch": among all samples of the epoch, which come as
            one row in random order, and what is kept is cut into mini-batches.
        period: epochs that a choice of scope "epoch" holds for; default 1. The first epoch stands alone.
        spread: True if it reads ``scores.spread``; default False.
    """

    @property
    def signal(self) -> str:
        """What the scores hold: a name in :data:`ausam.selection.signals.SIGNALS`."""

    @property
    def decay(self) -> float:
        """Weight of a sample's past in its score: 1 for the mean of all visits."""

    @property
    def kept(self) -> float:
        """Part of the samples that is used, about."""

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:
        """Positions to keep in each row of ``candidates`` (mini-batches x samples); weight of each, or None."""


def part(alpha: float, n: int) -> int:
    """How many of ``n`` a fraction ``alpha`` keeps: ``int(alpha n)`` as in the paper's code, but at least one."""
    return max(1, int(alpha * n))


def require(legal: bool, message: str) -> None:
    """Refuse an illegal setting."""
    if not legal:
        raise ValueError(message)


def check_alpha(policy: str, alpha: float, of: str = "each mini-batch") -> None:
    """Refuse a fraction outside (0, 1]."""
    require(0 < alpha <= 1, f"{policy}: alpha is {alpha}, but it is the part of {of} that is kept: 0 < alpha <= 1.")


def everything(candidates: Tensor) -> Choice:
    """Every position of every row."""
    rows, n = candidates.shape
    return torch.arange(n).expand(rows, n), None


def race(odds: Tensor, k: int, rng: Generator, *, weigh: bool = False) -> Choice:
    """Draw ``k`` of each row without replacement, each draw in proportion to the odds of those that are left.

    Every sample runs for an exponential time with its odds as rate; the k fastest win. That is sequential weighted
    sampling without replacement, for all rows at once (Efraimidis and Spirakis 2006).

    With ``weigh``, also the factor of each winner that makes the mean over the winners an unbiased estimate of the mean
    over the row: given the time T of the first loser, sample i wins with probability ``p_i = 1 - exp(-odds_i T)``, and
    ``mean_k[(k / n) l_i / p_i]`` is the Horvitz-Thompson estimator with these probabilities (rank conditioning, Cohen
    and Kaplan 2007).
    """
    n = odds.shape[1]
    odds = odds.clamp_min(1e-30)  # equal chances for those without odds, should there be places left for them
    times = torch.empty_like(odds).exponential_(generator=rng).div_(odds)
    if not weigh or k == n:
        winners = times.topk(k, dim=1, largest=False, sorted=False).indices.sort(dim=1).values
        return winners, torch.ones_like(winners, dtype=odds.dtype) if weigh else None
    fastest = times.topk(k + 1, dim=1, largest=False, sorted=True)
    winners = fastest.indices[:, :k].sort(dim=1).values
    p = -torch.expm1(-odds.gather(1, winners) * fastest.values[:, k:])
    return winners, (k / n) / p
