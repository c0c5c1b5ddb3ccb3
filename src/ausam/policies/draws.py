"""How a policy chooses: weighted and uniform samples without replacement, and the largest scores."""

from __future__ import annotations

import numpy as np
import torch
from torch import Generator, Tensor

from ausam.common.tensors import CPU

Choice = tuple[Tensor, Tensor | None]  # positions in each row, and their weights or None


def kept_count(alpha: float, n: int) -> int:
    """How many of ``n`` a fraction ``alpha`` keeps: ``int(alpha n)`` as in the paper's code, but at least one."""
    return max(1, int(alpha * n))


def everything(candidates: Tensor) -> Choice:
    """Every position of every row."""
    rows, n = candidates.shape
    return torch.arange(n, device=CPU).expand(rows, n), None


def weighted_sample(odds: Tensor, k: int, rng: Generator, *, weigh: bool = False) -> Choice:
    """Draw ``k`` of each row without replacement, each draw in proportion to the odds of the samples that remain.

    Every sample gets an exponential time with its odds as the rate, and the k fastest win. This is sequential weighted
    sampling without replacement, for all rows at once (Efraimidis and Spirakis 2006).

    With ``weigh``, also return the factor of each winner that makes the mean over the winners an unbiased estimate of
    the mean over the row. Given the time T of the first loser, sample i wins with probability ``p_i = 1 - exp(-odds_i
    T)``. ``mean_k[(k / n) l_i / p_i]`` is the Horvitz-Thompson estimator with these probabilities (rank conditioning,
    Cohen and Kaplan 2007).
    """
    n = odds.shape[1]
    odds = odds.clamp_min(1e-30)  # samples with zero odds share any remaining places equally
    times = exponential_times(odds, rng)
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


def exponential_times(rates: Tensor, rng: Generator) -> Tensor:
    """An exponential time with each of these rates. Infinite for a rate of 0."""
    return torch.rand(rates.shape, generator=rng, dtype=torch.float32, device=CPU).neg_().log1p_().neg_().div_(rates)


def random_positions(n: int, k: int, rng: Generator) -> Tensor:
    """``k`` of the positions from 0 to n - 1, all equally likely, in random order, four bytes each."""
    return torch.randperm(n, generator=rng, dtype=torch.int32, device=CPU)[:k]


def random_subset(positions: Tensor, k: int, rng: Generator) -> Tensor:
    """``k`` of the positions, all equally likely, in random order."""
    return positions.index_select(0, random_positions(len(positions), k, rng))


def unseen_first(scores: Tensor) -> Tensor:
    """Replace missing scores by infinity, in place. A score that is infinite itself ranks right after them."""
    return scores.nan_to_num_(nan=torch.inf, posinf=torch.finfo(scores.dtype).max)


def top_k_mask(scores: Tensor, k: int, rng: Generator) -> Tensor:
    """A mask of the ``k`` largest of a vector of scores. Missing scores rank first, and ties are broken at random.

    Without the random tie-break, the chosen ones of equal samples would all come early in the epoch.
    """
    n = len(scores)
    if k == 0:
        return torch.zeros(n, dtype=torch.bool, device=CPU)
    scores = unseen_first(scores)
    # A partial sort of the values alone takes a third of the memory of topk.
    threshold = float(np.partition(scores.numpy(), n - k)[n - k])
    mask = scores > threshold
    ties = mask_positions(scores == threshold)[0]
    return mask.index_fill_(0, random_subset(ties, k - int(mask.count_nonzero()), rng), True)


def mask_positions(mask: Tensor) -> Tensor:
    """The positions where the mask is set, as the one row that a policy of scope "epoch" returns."""
    return torch.from_numpy(np.flatnonzero(mask.numpy()))[None]  # nine times as fast as torch's nonzero
