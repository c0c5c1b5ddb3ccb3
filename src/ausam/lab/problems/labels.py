"""What is done to the labels of any data set: balanced parts and wrong labels, always the same ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ausam.lab.problems.problem import Problem
from ausam.random import generator

P = TypeVar("P", bound=Problem)


def with_sizes(data: P, train: int, test: int) -> P:
    """A part of the data of these sizes, 0 for all of it."""
    for which, size, y in (("train", train, data.train_y), ("test", test, data.test_y)):
        if not 0 <= size <= len(y):
            raise ValueError(
                f"{which}_size is {size}, but {data.name} has {len(y):,} samples there. "
                f"Use 1 to {len(y)}, or 0 for all of them."
            )
    return data.part(balanced(data.train_y, train), balanced(data.test_y, test)) if train or test else data


def balanced(y: Tensor, size: int) -> Tensor:
    """Positions of ``size`` random samples, ascending, with as equal numbers of each class as there are; 0: all.

    Where ``y`` holds no classes, any random samples.
    """
    if size in (0, len(y)):
        return torch.arange(len(y))
    order = torch.randperm(len(y), generator=generator(0, len(y), size))
    if y.dim() > 1:
        return order[:size].sort().values
    by_class = order[torch.argsort(y[order], stable=True)]
    counts = torch.bincount(y)
    rank = torch.empty_like(order)  # how many of its class come before a sample
    rank[by_class] = torch.arange(len(y)) - (counts.cumsum(0) - counts)[y[by_class]]
    # The first of every class, then the second of every class, and so on.
    return order[torch.argsort(rank[order], stable=True)][:size].sort().values


def with_label_noise(data: P, part: float) -> P:
    """Give ``round(part * n)`` training samples, always the same ones, a wrong label drawn evenly from the others."""
    if not 0 <= part < 1:
        raise ValueError(f"label noise is {part}, but it is the part of the labels that is made wrong: 0 <= part < 1.")
    if part and data.classes < 2:
        raise ValueError(f"{data.name} has a single class, so that no label can be wrong. Use label_noise 0.")
    n = len(data.train_y)
    rng = generator(0, n, data.classes)
    chosen = torch.randperm(n, generator=rng)[: round(part * n)]
    shift = torch.randint(1, max(2, data.classes), (len(chosen),), generator=rng)
    y = data.train_y.clone()
    y[chosen] = (y[chosen] + shift) % data.classes
    wrong = torch.zeros(n, dtype=torch.bool)
    wrong[chosen] = True
    noisy: Any = data  # a dataclass: mypy cannot say so of a protocol
    changed: P = replace(noisy, train_y=y, wrong=wrong)
    return changed
