"""How well one list of numbers approximates another: correlations with ties, and relative error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Agreement:
    """How well an estimate approximates the truth, over samples.

    Attributes:
        pearson: linear correlation, in [-1, 1]; NaN where one of the two is constant.
        spearman: rank correlation, in [-1, 1]; this is what matters if the estimate is only used for ranking.
        relative_error: ``mean |estimate - truth| / mean |truth|``.
        ratio: ``mean estimate / mean truth``; below 1, the estimate is too small.
        samples: number of pairs.
    """

    pearson: float
    spearman: float
    relative_error: float
    ratio: float
    samples: int


def agreement(estimate: Any, truth: Any) -> Agreement:
    """Correlations and relative error of an estimate; pairs with a NaN are ignored.

    >>> from ausam.diagnostics import agreement
    >>> agreement([1.0, 2.0, 4.0], [1.0, 4.0, 16.0]).spearman
    1.0

    Arguments:
        estimate: one number per sample, as a list, array or tensor.
        truth: the true values, likewise.
    """
    a, b = array(estimate), array(truth)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"estimate has shape {a.shape} and truth {b.shape}; both need one number per sample.")
    both = ~(np.isnan(a) | np.isnan(b))
    a, b = a[both], b[both]
    if not len(a):
        raise ValueError("No sample has both an estimate and a true value, so there is nothing to compare.")
    size = float(np.abs(b).mean())
    return Agreement(
        pearson=pearson(a, b),
        spearman=spearman(a, b),
        relative_error=float(np.abs(a - b).mean()) / size if size else float("nan"),
        ratio=float(a.mean() / b.mean()) if b.mean() else float("nan"),
        samples=len(a),
    )


def pearson(a: Any, b: Any) -> float:
    """Linear correlation; NaN where one of the two is constant.

    >>> pearson([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    1.0
    """
    x, y = array(a), array(b)
    if len(x) < 2 or x.min() == x.max() or y.min() == y.max():
        return float("nan")
    # Scale first, so that squares of tiny numbers do not underflow.
    x, y = (x - x.mean()) / np.abs(x - x.mean()).max(), (y - y.mean()) / np.abs(y - y.mean()).max()
    r = float((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))
    return min(1.0, max(-1.0, r))


def spearman(a: Any, b: Any) -> float:
    """Pearson's correlation of the ranks; equal values share the mean of their ranks.

    >>> spearman([1, 2, 2, 9], [1, 3, 3, 4])
    1.0
    """
    return pearson(ranks(a), ranks(b))


def ranks(a: Any) -> Array:
    """Rank of each value from 1 up; equal values share the mean of their ranks.

    >>> ranks([3.0, 1.0, 3.0]).tolist()
    [2.5, 1.0, 2.5]
    """
    _, where, count = np.unique(array(a), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    mean: Array = last - (count - 1) / 2
    return mean[where]


def array(values: Any) -> Array:
    """Numbers as a float64 array on the CPU."""
    if isinstance(values, Tensor):
        return values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def numbers(values: Any) -> tuple[float, ...]:
    """Numbers as a plain tuple, ready for JSON."""
    return tuple(float(v) for v in array(values))
