"""Helpers of the policies of scope "epoch", which choose among all samples of an epoch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Generator, Tensor

from ausam.common.tensors import CPU
from ausam.policies.base import Choice


def some(positions: Tensor, k: int, rng: Generator) -> Tensor:
    """``k`` of the positions, all equally likely."""
    return positions[torch.randperm(len(positions), generator=rng, device=CPU)[:k]]


def unseen_first(scores: Tensor) -> Tensor:
    """Replace missing scores by infinity, in place; a score that is infinite itself ranks right after them."""
    return scores.nan_to_num_(nan=torch.inf, posinf=torch.finfo(scores.dtype).max)


def largest(scores: Tensor, k: int, rng: Generator) -> Tensor:
    """Mark the ``k`` largest of a vector of scores; missing scores rank first, and ties are broken at random.

    Without the random tie-break, the chosen ones of equal samples would all come early in the epoch.
    """
    n = len(scores)
    if k == 0:
        return torch.zeros(n, dtype=torch.bool, device=CPU)
    scores = unseen_first(scores)
    # A partial sort of the values alone takes a third of the memory of topk.
    cut = float(np.partition(scores.numpy(), n - k)[n - k])
    marks = scores > cut
    ties = (scores == cut).nonzero()[:, 0]
    marks[some(ties, k - int(marks.sum()), rng)] = True
    return marks


def positions(marks: Tensor) -> Tensor:
    """The marked positions, as the one row that ``choose`` returns."""
    return marks.nonzero()[:, 0][None]


def thin(marks: Tensor, keep: float, rng: Generator) -> Choice:
    """A random fraction ``keep`` of the marked samples with weight ``1 / keep``, and all others with weight 1."""
    marked = marks.nonzero()[:, 0]
    stays = ~marks
    stays[some(marked, int(keep * len(marked)), rng)] = True
    kept = positions(stays)
    return kept, torch.where(marks[kept], 1 / keep, 1.0)
