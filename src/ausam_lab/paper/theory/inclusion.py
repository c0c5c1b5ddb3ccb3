"""The exact probability that a sample is drawn, for weighted draws without replacement."""

from __future__ import annotations

from typing import Any

import numpy as np

from ausam.diagnostics.arguments import count
from ausam.diagnostics.statistics import Array, array

RATIO = 1e3  # of the largest odds to the smallest; beyond it the quadrature is inaccurate


def inclusion_probabilities(odds: Any, k: int, *, nodes: int = 256) -> Array:
    """The probability that each sample is among ``k`` drawn one by one in proportion to their odds.

        p_i = integral of  odds_i exp(-odds_i t)  P(fewer than k of the others are faster than t)  dt

    Sequential sampling without replacement is a race of exponential times (Efraimidis and Spirakis 2006). The number of
    others faster than t is a sum of independent coin tosses, whose distribution is built up one toss at a time.

    >>> from ausam_lab.paper.theory import inclusion_probabilities
    >>> inclusion_probabilities([1.0, 1.0, 2.0], 1).round(6).tolist()
    [0.25, 0.25, 0.5]

    Arguments:
        odds: one number > 0 per sample, the largest at most 1000 times the smallest.
        k: number of samples drawn, in [1, n].
        nodes: points of the Gauss-Legendre quadrature, >= 16.

    Cost: ``n^2 k nodes`` operations, a tenth of a second for 32 of 64.
    """
    rate = array(odds)
    n = len(rate)
    if rate.ndim != 1 or not n or not 1 <= count("k", k) <= n:
        raise ValueError(f"odds has shape {rate.shape} and k is {k}; n odds and 1 <= k <= n are needed.")
    if not (np.isfinite(rate).all() and rate.min() > 0 and rate.max() <= RATIO * rate.min()):
        raise ValueError(
            f"The odds lie between {rate.min():g} and {rate.max():g}, but the quadrature needs odds > 0 within a "
            "factor of 1000. Estimate the probabilities from random draws instead."
        )
    if k == n:
        return np.ones(n)
    points, weights = np.polynomial.legendre.leggauss(count("nodes", nodes, low=16))
    v, dv = (points + 1) / 2, weights / 2  # v = exp(-min odds * t), from 0 to 1
    power = rate / rate.min()
    slower = v[:, None] ** power  # nodes x n: probability that sample j takes longer than t
    below = np.zeros((n, len(v), k))  # of sample i's rivals: how many are faster than t, 0 .. k-1
    below[:, :, 0] = 1.0
    for j in range(n):
        stay = slower[:, j][None, :, None]
        rivals = np.arange(n) != j
        moved = below[rivals]
        moved[:, :, 1:] = moved[:, :, 1:] * stay + moved[:, :, :-1] * (1 - stay)
        moved[:, :, :1] *= stay
        below[rivals] = moved
    density = power[:, None] * v[None] ** (power[:, None] - 1)
    p: Array = (density * below.sum(2) * dv).sum(1)
    if abs(p.sum() - k) > 1e-6 * k:
        raise ValueError(f"The probabilities sum to {p.sum():g}, not {k}. Increase nodes.")
    shared: Array = p * (k / p.sum())  # the quadrature's last digits
    return shared
