"""The interface of a policy, and the random draw that several share."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Generator, Tensor

from ausam.selection.scores import Scores

Choice = tuple[Tensor, Tensor | None]


class Policy(Protocol):
    """A pure rule that chooses among candidates. All state is in the scores, which the sampler owns."""

    @property
    def signal(self) -> str:
        """What the scores hold: a name in :data:`ausam.selection.signals.SIGNALS`."""

    @property
    def scope(self) -> str:
        """Where it chooses.

        "batch": inside each mini-batch. An epoch is planned in blocks, when they are due.
        "epoch": among all samples of the epoch, which come as one row in random order, before they are cut into
        mini-batches. The choice needs all scores at once, when the epoch begins.
        "slice": nowhere, because an epoch is a slice of an order that several epochs share. See :class:`Sliced`.
        """

    @property
    def period(self) -> int:
        """Epochs that a choice of scope "epoch" holds for, >= 1; the first epoch stands alone. Else 1."""

    @property
    def decay(self) -> float:
        """Weight of a sample's past in its score: 1 for the mean of all visits."""

    @property
    def spread(self) -> bool:
        """Whether it reads ``scores.spread``, which takes four bytes more per sample."""

    @property
    def kept(self) -> float:
        """Part of the samples that is used, about."""

    def count(self, epoch: int, n: int) -> int | None:
        """How many of ``n`` candidates are kept in this epoch: so the length of the epoch is known beforehand.

        None if it depends on the scores, which it may in scope "epoch" only.
        """

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:
        """Positions to keep in each row of ``candidates`` (mini-batches x samples); weight of each, or None."""


class Slice(NamedTuple):
    """The samples of an epoch for a policy of scope "slice": consecutive places of a shuffled order.

    Arguments:
        turn: which order.
        start: the first place.
        length: how many; what lies beyond the end of the order is at its beginning.
        shuffle: whether the places are used in a random sequence of the epoch, or as they come.
    """

    turn: int
    start: int
    length: int
    shuffle: bool


class Sliced(Policy, Protocol):
    """What a policy of scope "slice" has besides."""

    def slice(self, epoch: int, n: int) -> Slice:
        """The part of ``n`` samples that the epoch uses."""

    def size(self, n: int) -> int:
        """How many samples a mini-batch of ``n`` has."""


# What a policy must have: for the error message of one that lacks something.
MEMBERS = ("signal", "scope", "period", "decay", "spread", "kept", "count", "choose")


def part(alpha: float, n: int) -> int:
    """How many of ``n`` a fraction ``alpha`` keeps: ``int(alpha n)`` as in the paper's code, but at least one."""
    return max(1, int(alpha * n))


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
    times = torch.rand(odds.shape, generator=rng).neg_().log1p_().neg_().div_(odds)
    if k == n:
        winners, _ = everything(odds)
        return winners, torch.ones(winners.shape) if weigh else None
    # numpy's partition and sort take a quarter of the time of topk and sort.
    fastest = np.argpartition(times.numpy(), k, axis=1)
    winners = torch.from_numpy(np.sort(fastest[:, :k], axis=1))
    if not weigh:
        return winners, None
    limit = times.gather(1, torch.from_numpy(fastest[:, k : k + 1]))
    return winners, (k / n) / -torch.expm1(-odds.gather(1, winners) * limit)
