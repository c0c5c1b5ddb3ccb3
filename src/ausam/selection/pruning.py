"""Choosing among all samples of an epoch: what the policies of scope "epoch" share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Generator, Tensor

from ausam.selection.policy import Choice


def some(positions: Tensor, k: int, rng: Generator) -> Tensor:
    """``k`` of the positions, all equally likely."""
    return positions[torch.randperm(len(positions), generator=rng)[:k]]


def unseen_first(scores: Tensor) -> Tensor:
    """The scores, in place, with infinity for samples that have none; an infinite score comes right after."""
    return scores.nan_to_num_(nan=torch.inf, posinf=torch.finfo(scores.dtype).max)


def largest(scores: Tensor, k: int, rng: Generator) -> Tensor:
    """Marks the ``k`` largest of a vector of scores; those without a score first, equal ones at random.

    Without the random draw the first of equal samples would all come early in the epoch.
    """
    n = len(scores)
    if k == 0:
        return torch.zeros(n, dtype=torch.bool)
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
    """A random part ``keep`` of the marked samples with weight ``1 / keep``, and all others with weight 1."""
    marked = marks.nonzero()[:, 0]
    stays = ~marks
    stays[some(marked, int(keep * len(marked)), rng)] = True
    kept = positions(stays)
    return kept, torch.where(marks[kept], 1 / keep, 1.0)
