"""Groups of losses: a mixture of normal distributions of their logarithms, fitted by expectation maximisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

FLOOR = 1e-4  # smaller losses are equally well fitted; their logarithms would only stretch the lowest group
BINS = 256
ROUNDS = 200
CLOSE = 1e-6  # gain in log-likelihood per loss and round below which the fit is done
LEAST = 0.05  # of the deviation of all: no group may shrink to one value
TO_SPLIT = 20  # fewer losses are not split
STARTS = {  # quantiles at which the losses are split at first: the upper group may be small
    2: ((0.5,), (0.8,), (0.95,), (0.99,), (0.995,)),
    3: ((0.5, 0.8), (0.5, 0.9), (0.6, 0.95), (0.7, 0.99)),
}


@dataclass(frozen=True)
class Groups:
    """A fitted mixture of normal distributions of ``log(loss)``, by rising mean.

    Attributes:
        share: weight of each group.
        mean: mean of ``log(loss)`` in each group.
        deviation: standard deviation of ``log(loss)`` in each group.
        gain: by how much these groups are better than one, in units of BIC: positive if they are justified.
    """

    share: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    gain: float

    @property
    def distance(self) -> float:
        """Ashman's D of the two highest groups, ``sqrt(2) (m1 - m0) / sqrt(s0^2 + s1^2)``."""
        return math.sqrt(2) * (self.mean[-1] - self.mean[-2]) / math.hypot(*self.deviation[-2:])

    @property
    def lower(self) -> float:
        """The typical (geometric mean) loss of the group below the highest."""
        return math.exp(self.mean[-2])

    @property
    def least(self) -> float:
        """The loss that nearly all of the highest group exceeds: its mean less two standard deviations, in logs."""
        return math.exp(self.mean[-1] - 2 * self.deviation[-1])

    @property
    def crossing(self) -> float:
        """The loss between the means of the two highest groups at which the highest becomes the likeliest."""
        grid = np.linspace(self.mean[-2], self.mean[-1], 2001)
        density = _log_densities(grid, np.array(self.share), np.array(self.mean), np.array(self.deviation))
        likely = np.flatnonzero(density[-1] >= np.logaddexp.reduce(density[:-1], axis=0))
        return math.exp(grid[likely[0]]) if len(likely) else math.exp(self.mean[-1])


def fit_groups(loss: Array, count: int = 2) -> Groups | None:
    """Fit groups to losses by expectation maximisation. None for fewer than twenty losses, or equal ones.

    The fit works on a histogram, so it costs one pass over the losses. It is deterministic. Of several starts it keeps
    the likeliest fit.

    >>> import numpy as np
    >>> losses = np.concatenate([np.linspace(0.01, 0.05, 80), np.linspace(2.0, 4.0, 20)])
    >>> groups = fit_groups(losses)
    >>> round(groups.share[1], 2), groups.distance > 2
    (0.2, True)
    """
    size = np.count_nonzero(np.isfinite(loss))
    if size < TO_SPLIT or (spread := _deviation(_logs(loss))) < 1e-6:
        return None
    counts, edges = np.histogram(_logs(loss), BINS)
    x, n = ((edges[:-1] + edges[1:]) / 2)[counts > 0], counts[counts > 0].astype(np.float64)
    cuts = x[np.searchsorted(n.cumsum() / n.sum(), STARTS[count])]
    group = (x > cuts[:, :, None]).sum(1)  # of each value, in each start
    likelihood, share, mean, deviation = _likeliest(x, n, group, count, LEAST * spread)
    one = -0.5 * size * (1 + math.log(2 * math.pi * spread**2))
    gain = 2 * (likelihood - one) - 3 * (count - 1) * math.log(size)  # three more parameters for each group
    order = np.argsort(mean)
    return Groups(tuple(share[order].tolist()), tuple(mean[order].tolist()), tuple(deviation[order].tolist()), gain)


def _logs(loss: Array) -> Array:
    """The logarithms of the finite losses, in place: there may be ten million."""
    logs = loss[np.isfinite(loss)]
    np.log(np.maximum(logs, FLOOR, out=logs), out=logs)
    return logs


def _deviation(logs: Array) -> float:
    """Their standard deviation, which overwrites them. NumPy's would take a copy."""
    logs -= logs.mean()
    return math.sqrt(np.square(logs, out=logs).mean())


def _likeliest(
    x: Array, n: Array, group: NDArray[np.int64], count: int, least: float
) -> tuple[float, Array, Array, Array]:
    """Log-likelihood, share, mean and deviation of the groups: of all starts, maximised at once, the likeliest."""
    total, before = n.sum(), -math.inf
    responsibility = np.where(group[:, None] == np.arange(count)[:, None], 0.95, 0.05)  # starts, groups, values
    for _ in range(ROUNDS):
        counts = responsibility * n
        weight = np.maximum(counts.sum(-1), 1e-9 * total)
        mean = counts @ x / weight
        deviation = np.sqrt((counts * (x - mean[..., None]) ** 2).sum(-1) / weight).clip(least)
        share = weight / weight.sum(-1, keepdims=True)
        density = _log_densities(x, share, mean, deviation)
        both = np.logaddexp.reduce(density, axis=-2)
        responsibility = np.exp(density - both[:, None])
        likelihood = both @ n
        if (likelihood - before < CLOSE * total).all():
            break
        before = likelihood
    best = int(np.argmax(likelihood))
    return float(likelihood[best]), share[best], mean[best], deviation[best]


def _log_densities(x: Array, share: Array, mean: Array, deviation: Array) -> Array:
    z = (x - mean[..., None]) / deviation[..., None]
    return np.asarray(np.log(share / deviation)[..., None] - 0.5 * z**2 - 0.5 * math.log(2 * math.pi))
