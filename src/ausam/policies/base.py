"""The interface of a policy, and the random draw that several share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from torch import Generator, Tensor

from ausam.common.tensors import CPU

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores

Choice = tuple[Tensor, Tensor | None]


class Policy(Protocol):
    """A pure rule that chooses among candidates. All state is in the scores, which the sampler owns."""

    @property
    def signal(self) -> str:
        """The signal that the scores average: a name in :data:`ausam.policies.signals.SIGNALS`."""

    @property
    def scope(self) -> str:
        """Where the policy chooses.

        "batch": inside each mini-batch. An epoch is planned in blocks, when they are needed.
        "epoch": among all samples of the epoch, passed as one row in random order, before they are cut into
        mini-batches. The choice needs all scores at once, when the epoch begins.
        "slice": there is no choice; an epoch is a slice of an order that several epochs share. See :class:`Sliced`.
        """

    @property
    def period(self) -> int:
        """Number of epochs that share a choice of scope "epoch", >= 1, not counting the first epoch. Otherwise 1."""

    @property
    def decay(self) -> float:
        """Weight of a sample's past in its score: 1 for the mean of all visits."""

    @property
    def spread(self) -> bool:
        """Whether the policy reads ``scores.spread``, which takes four more bytes per sample."""

    @property
    def kept(self) -> float:
        """Approximate fraction of the samples used."""

    def count(self, epoch: int, n: int) -> int | None:
        """How many of ``n`` candidates are kept in this epoch. The sampler needs it to know the epoch's length.

        None if it depends on the scores; only scope "epoch" allows that.
        """

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:
        """Positions to keep in each row of ``candidates`` (mini-batches x samples), and their weights or None."""


class Slice(NamedTuple):
    """The samples of an epoch for a policy of scope "slice": consecutive positions of a shuffled order.

    Arguments:
        turn: which order.
        start: the first position.
        length: number of positions; past the end of the order, it wraps around to the beginning.
        shuffle: whether to shuffle the positions once more in this epoch, or to use them in order.
    """

    turn: int
    start: int
    length: int
    shuffle: bool


class Sliced(Policy, Protocol):
    """Additional members of a policy of scope "slice"."""

    def slice(self, epoch: int, n: int) -> Slice:
        """The slice of ``n`` samples that the epoch uses."""

    def size(self, n: int) -> int:
        """Number of samples kept of a mini-batch of ``n``."""


# Members that every policy must have.
MEMBERS = ("signal", "scope", "period", "decay", "spread", "kept", "count", "choose")


def part(alpha: float, n: int) -> int:
    """How many of ``n`` a fraction ``alpha`` keeps: ``int(alpha n)`` as in the paper's code, but at least one."""
    return max(1, int(alpha * n))


def everything(candidates: Tensor) -> Choice:
    """Every position of every row."""
    rows, n = candidates.shape
    return torch.arange(n, device=CPU).expand(rows, n), None


def race(odds: Tensor, k: int, rng: Generator, *, weigh: bool = False) -> Choice:
    """Draw ``k`` of each row without replacement, each draw in proportion to the odds of the samples that remain.

    Every sample gets an exponential time with its odds as the rate, and the k fastest win. This is sequential weighted
    sampling without replacement, for all rows at once (Efraimidis and Spirakis 2006).

    With ``weigh``, also return the factor of each winner that makes the mean over the winners an unbiased estimate of
    the mean over the row. Given the time T of the first loser, sample i wins with probability
    ``p_i = 1 - exp(-odds_i T)``, and ``mean_k[(k / n) l_i / p_i]`` is the Horvitz-Thompson estimator with these
    probabilities (rank conditioning, Cohen and Kaplan 2007).
    """
    n = odds.shape[1]
    odds = odds.clamp_min(1e-30)  # samples with zero odds share any remaining places equally
    times = torch.rand(odds.shape, generator=rng, dtype=torch.float32, device=CPU).neg_().log1p_().neg_().div_(odds)
    if k == n:
        winners, _ = everything(odds)
        return winners, torch.ones(winners.shape, dtype=torch.float32, device=CPU) if weigh else None
    # numpy's partition and sort take a quarter of the time of torch's topk and sort.
    fastest = np.argpartition(times.numpy(), k, axis=1)
    winners = torch.from_numpy(np.sort(fastest[:, :k], axis=1))
    if not weigh:
        return winners, None
    limit = times.gather(1, torch.from_numpy(fastest[:, k : k + 1]))
    return winners, (k / n) / -torch.expm1(-odds.gather(1, winners) * limit)
