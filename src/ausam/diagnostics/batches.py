"""Batches: the arguments of a loss function as a tuple, with one row per sample in each tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from ausam.diagnostics.arguments import count

Batch = tuple[Any, ...]


def size(batch: Batch) -> int:
    """Number of samples: the length of the first tensor."""
    for leaf in tree_flatten(batch)[0]:
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return len(leaf)
    raise TypeError("The batch holds no tensor with a first dimension, so its number of samples is unknown.")


def rows(batch: Batch, which: slice | Tensor, n: int) -> Batch:
    """Select samples of a batch: the given rows of every tensor that has one row per sample."""
    leaves, shape = tree_flatten(batch)

    def pick(leaf: Any) -> Any:
        if not (isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == n):
            return leaf
        return leaf[which.to(leaf.device) if isinstance(which, Tensor) else which]

    chosen: Batch = tree_unflatten([pick(leaf) for leaf in leaves], shape)
    return chosen


def take_samples(batches: Iterable[Batch], samples: int | None) -> list[Batch]:
    """The batches as a list, cut off after ``samples`` samples."""
    if isinstance(batches, Tensor) or (isinstance(batches, tuple) and any(isinstance(b, Tensor) for b in batches)):
        raise TypeError("batches is a single batch, but a list of batches is needed: [(x, y)], not (x, y).")
    left = None if samples is None else count("samples", samples)
    kept: list[Batch] = []
    for batch in batches:
        if not isinstance(batch, (tuple, list)):
            raise TypeError(
                f"A batch is a {type(batch).__name__}, but a tuple of loss_fn's arguments is needed, e.g. (x, y)."
            )
        n = size(tuple(batch))
        keep = n if left is None else min(n, left)
        if keep:
            kept.append(tuple(batch) if keep == n else rows(tuple(batch), slice(0, keep), n))
        left = None if left is None else left - keep
        if left == 0:
            break
    if not kept:
        raise ValueError("There are no samples to measure: batches is empty. Has its iterator already been consumed?")
    if left:
        have = sum(size(b) for b in kept)
        raise ValueError(f"samples is {samples}, but batches holds only {have}. Pass more batches or lower samples.")
    return kept
