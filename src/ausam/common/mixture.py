"""Two groups in one column of losses: a mixture of two normal distributions of the logarithm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FLOOR = 1e-4  # smaller losses are equally well fitted; their logarithms would only stretch the lower group
BINS = 512
ROUNDS = 200


@dataclass(frozen=True)
class TwoGroups:
    """A fitted mixture ``w0 N(m0, s0) + w1 N(m1, s1)`` of ``log(loss)``, with ``m0 <= m1``.

    Attributes:
        share: weight of each group.
        mean: mean of ``log(loss)`` in each group.
        deviation: standard deviation of ``log(loss)`` in each group.
        gain: by how much two groups are better than one, in units of BIC: positive if two groups are justified.
    """

    share: tuple[float, float]
    mean: tuple[float, float]
    deviation: tuple[float, float]
    gain: float

    @property
    def distance(self) -> float:
        """Ashman's D, ``sqrt(2) (m1 - m0) / sqrt(s0^2 + s1^2)``: above 2 the groups are clearly apart."""
        return math.sqrt(2) * (self.mean[1] - self.mean[0]) / math.hypot(*self.deviation)

    @property
    def lower(self) -> float:
        """The typical (geometric mean) loss of the lower group."""
        return math.exp(self.mean[0])

    @property
    def upper(self) -> float:
        """The typical (geometric mean) loss of the upper group."""
        return math.exp(self.mean[1])

    @property
    def crossing(self) -> float:
        """The loss between the two means at which both groups are equally likely."""
        grid = np.linspace(self.mean[0], self.mean[1], 2001)
        likely = np.nonzero(self._of_logs(grid) >= 0.5)[0]
        return math.exp(grid[likely[0]]) if len(likely) else self.upper

    def posterior(self, loss: Array) -> Array:
        """The probability that each loss belongs to the upper group; NaN where the loss is NaN.

        It never falls as the loss rises: a wide lower group does not take the largest losses back.
        """
        logs = np.log(np.maximum(loss, FLOOR))
        order = np.argsort(logs, kind="stable")  # NaN last
        rising = np.maximum.accumulate(self._of_logs(np.maximum(logs[order], self.mean[0])))
        result = np.empty_like(logs)
        result[order] = rising
        result[np.isnan(logs)] = np.nan
        return result

    def _of_logs(self, logs: Array) -> Array:
        log_density = _log_densities(logs, np.array(self.share), np.array(self.mean), np.array(self.deviation))
        return np.asarray(1.0 / (1.0 + np.exp(np.clip(log_density[0] - log_density[1], -700, 700))))


def histogram(loss: Array, among: NDArray[np.bool_] | None = None) -> tuple[Array, Array]:
    """The logarithms of the losses in equal bins: centres and counts, of those losses alone if given. NaN is left out.

    >>> import numpy as np
    >>> centres, counts = histogram(np.array([0.1, 1.0, np.nan]))
    >>> float(counts.sum())
    2.0
    """
    known = np.isfinite(loss)
    logs = np.log(np.maximum(loss[known], FLOOR))
    if not len(logs):
        return np.empty(0), np.empty(0)
    counted = logs if among is None else logs[among[known]]
    counts, edges = np.histogram(counted, BINS, (logs.min(), max(logs.max(), logs.min() + 1e-9)))
    return (edges[:-1] + edges[1:]) / 2, counts.astype(np.float64)


def two_groups(loss: Array) -> TwoGroups | None:
    """Fit two groups to losses by expectation maximisation; None for fewer than twenty losses or a single value.

    The fit works on a histogram, so it costs one pass over the losses whatever their number, and it is deterministic.

    >>> import numpy as np
    >>> losses = np.concatenate([np.linspace(0.01, 0.05, 80), np.linspace(2.0, 4.0, 20)])
    >>> groups = two_groups(losses)
    >>> round(groups.share[1], 2), groups.distance > 2
    (0.2, True)
    """
    return fit(*histogram(np.asarray(loss, np.float64)))


def fit(x: Array, n: Array) -> TwoGroups | None:
    """The two groups of values ``x`` that occur ``n`` times each."""
    total = n.sum()
    if total < 20:
        return None
    centre = float((n * x).sum() / total)
    spread = math.sqrt(float((n * (x - centre) ** 2).sum() / total))
    if spread < 1e-6:
        return None
    upper = x > _split(x, n)
    if n[upper].sum() < 1 or n[~upper].sum() < 1:
        return None
    responsibility = np.stack([~upper, upper]).astype(np.float64)
    least = 0.05 * spread  # a group may not shrink to one value
    log_likelihood = -math.inf
    for _ in range(ROUNDS):
        weight = np.maximum((responsibility * n).sum(1), 1e-9 * total)
        mean = (responsibility * n * x).sum(1) / weight
        deviation = np.maximum(np.sqrt((responsibility * n * (x - mean[:, None]) ** 2).sum(1) / weight), least)
        log_density = _log_densities(x, weight / weight.sum(), mean, deviation)
        top = log_density.max(0)
        log_sum = top + np.log(np.exp(log_density - top).sum(0))
        responsibility = np.exp(log_density - log_sum)
        before, log_likelihood = log_likelihood, float((n * log_sum).sum())
        if log_likelihood - before < 1e-7 * total:
            break
    one = -0.5 * total * (1 + math.log(2 * math.pi * spread**2))
    gain = 2 * (log_likelihood - one) - 3 * math.log(total)  # three more parameters than one normal
    share = weight / weight.sum()
    a, b = (0, 1) if mean[0] <= mean[1] else (1, 0)
    return TwoGroups(
        (float(share[a]), float(share[b])),
        (float(mean[a]), float(mean[b])),
        (float(deviation[a]), float(deviation[b])),
        gain,
    )


def _split(x: Array, n: Array) -> float:
    """The middle between two groups by k-means, from the tenth and the ninetieth percentile."""
    position = np.cumsum(n) / n.sum()
    low, high = x[np.searchsorted(position, 0.1)], x[np.searchsorted(position, 0.9)]
    for _ in range(20):
        upper = x > (low + high) / 2
        if n[upper].sum() == 0 or n[~upper].sum() == 0:
            break
        low, high = np.average(x[~upper], weights=n[~upper]), np.average(x[upper], weights=n[upper])
    return float((low + high) / 2)


def _log_densities(x: Array, share: Array, mean: Array, deviation: Array) -> Array:
    z = (x - mean[:, None]) / deviation[:, None]
    return np.asarray(np.log(share / deviation)[:, None] - 0.5 * z**2 - 0.5 * math.log(2 * math.pi))
