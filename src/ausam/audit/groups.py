"""Two groups of averaged losses: samples that are learnt, easy or hard, and samples whose label the network resists."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ausam.audit.table import Array
from ausam.common.mixture import FLOOR, histogram
from ausam.common.trust import EVEN

GAIN = 0.25  # least gain in BIC over one group, per sample of the upper group
SHAPE = 0.5  # least shape of the lower group
STARTS = (0.5, 0.7, 0.8, 0.9, 0.97)  # quantiles at which the groups are split at first
ROUNDS = 300
LEAST, MOST = 0.05, 100.0  # deviation of the upper and shape of the lower group: neither may shrink to one value


@dataclass(frozen=True)
class Groups:
    """A fitted mixture of losses: ``(1 - share) Weibull(shape, scale) + share N(mean, deviation)``.

    A Weibull distribution describes the losses of right labels, from those that pile up at 0 to a long tail of hard
    samples. Without the tail, hard samples would be taken for wrong labels.

    Attributes:
        shape: of the lower group.
        scale: of the lower group.
        share: of the upper group.
        mean: of the upper group.
        deviation: of the upper group.
        gain: by how much two groups are better than one Weibull distribution, in units of BIC.
        count: number of losses.
    """

    shape: float
    scale: float
    share: float
    mean: float
    deviation: float
    gain: float
    count: float

    @property
    def lower(self) -> float:
        """The mean loss of the lower group."""
        return self.scale * math.gamma(1 + 1 / self.shape)

    @property
    def crossing(self) -> float:
        """The loss between the two means at which both groups are equally likely."""
        grid = np.linspace(self.lower, self.mean, 2001)
        likely = np.flatnonzero(self.posterior(grid) >= 0.5)
        return float(grid[likely[0]]) if len(likely) else self.mean

    def are_apart(self, even: float = EVEN, gain: float = GAIN) -> bool:
        """Whether there really are two groups, the lower one learnt and the upper one not.

        The gain is asked per sample of the upper group: among many samples, two groups of any shape are better than
        one. The shape is asked because wrong labels keep a network from being certain of the right ones: if nearly all
        losses pile up at 0, the upper group is the end of a long tail.

        Arguments:
            even: the loss between learnt and not learnt.
            gain: least gain per sample of the upper group.
        """
        clear = self.gain > max(10.0, gain * self.share * self.count) and self.shape > SHAPE
        return clear and self.lower < even < self.mean

    def posterior(self, loss: Array) -> Array:
        """The probability that each loss belongs to the upper group; NaN where the loss is NaN.

        It is 0 below the mean of the lower group, and never falls as the loss rises.
        """
        grid = np.geomspace(max(self.lower, FLOOR), max(float(np.nanmax(loss)), self.mean, FLOOR) + FLOOR, 2001)
        below, above = _log_densities(grid, np.log(grid), self.share, _weibull_of(self), (self.mean, self.deviation))
        rising = np.maximum.accumulate(1 / (1 + np.exp(np.clip(below - above, -700, 700))))
        return np.where(np.isnan(loss), np.nan, np.interp(loss, grid, rising, left=0.0))


def two_groups(loss: Array) -> Groups | None:
    """Fit two groups to averaged losses by expectation maximisation; None for fewer than twenty, or equal, losses.

    It works on a histogram, so it costs one pass over the losses whatever their number, and it is deterministic.

    >>> import numpy as np
    >>> groups = two_groups(np.concatenate([np.linspace(0.01, 0.05, 80), np.linspace(2.0, 4.0, 20)]))
    >>> round(groups.share, 2), groups.are_apart()
    (0.2, True)
    """
    return fit(*histogram(np.asarray(loss, np.float64)))


def fit(logs: Array, n: Array, start: Groups | None = None) -> Groups | None:
    """The two groups of losses whose logarithms ``logs`` occur ``n`` times each.

    Arguments:
        logs: rising.
        n: how often each occurs.
        start: groups to start from, instead of several splits of the losses.
    """
    logs, n = logs[n > 0], n[n > 0]
    total = float(n.sum())
    if total < 20 or len(logs) < 2:
        return None
    x = np.exp(logs)
    one = float((n * _log_weibull(logs, *_weibull(logs, n))).sum())
    best: tuple[float, Groups] | None = None
    for responsibility in _first(x, logs, n, start):
        likelihood, shape, scale, share, mean, deviation = _maximise(x, logs, n, responsibility)
        if best is None or likelihood > best[0] + 1e-9:
            gain = 2 * (likelihood - one) - 3 * math.log(total)  # three more parameters than one Weibull
            best = likelihood, Groups(shape, scale, share, mean, deviation, gain, total)
    return None if best is None else best[1]


def _first(x: Array, logs: Array, n: Array, start: Groups | None) -> Iterable[Array]:
    if start is not None:
        below, above = _log_densities(x, logs, start.share, _weibull_of(start), (start.mean, start.deviation))
        return [1 / (1 + np.exp(np.clip(below - above, -700, 700)))]
    position = np.cumsum(n) / n.sum()
    return [np.where(position > quantile, 0.95, 0.05) for quantile in STARTS]


def _maximise(
    x: Array, logs: Array, n: Array, responsibility: Array
) -> tuple[float, float, float, float, float, float]:
    """Log-likelihood, shape, scale, share, mean and deviation."""
    total, before, shape = n.sum(), -math.inf, 1.0
    for _ in range(ROUNDS):
        upper = responsibility * n
        share = float(np.clip(upper.sum() / total, 1e-9, 1 - 1e-9))
        mean = float((upper * x).sum() / upper.sum())
        deviation = max(LEAST, math.sqrt(float((upper * (x - mean) ** 2).sum() / upper.sum())))
        shape, log_scale = _weibull(logs, n - upper, shape)
        below, above = _log_densities(x, logs, share, (shape, log_scale), (mean, deviation))
        both = np.logaddexp(below, above)
        responsibility = np.exp(above - both)
        likelihood = float((n * both).sum())
        if likelihood - before < 1e-7 * total:
            break
        before = likelihood
    return likelihood, shape, math.exp(log_scale), share, mean, deviation


def _weibull(logs: Array, n: Array, shape: float = 1.0) -> tuple[float, float]:
    """Shape and log of the scale of the likeliest Weibull distribution, by Newton's method."""
    n = np.maximum(n, 1e-12)
    total, centre, top = n.sum(), float((n * logs).sum() / n.sum()), logs[-1]
    for _ in range(50):
        weight = n * np.exp(shape * (logs - top))
        first = float((weight * logs).sum() / weight.sum())
        spread = float((weight * (logs - first) ** 2).sum() / weight.sum())
        new = shape - (first - 1 / shape - centre) / (spread + shape**-2)
        new = min(max(new, shape / 2), 2 * shape, MOST)
        done, shape = abs(new - shape) < 1e-7 * shape, new
        if done:
            break
    return shape, float(top + math.log((n * np.exp(shape * (logs - top))).sum() / total) / shape)


def _weibull_of(groups: Groups) -> tuple[float, float]:
    return groups.shape, math.log(groups.scale)


def _log_weibull(logs: Array, shape: float, log_scale: float) -> Array:
    z = shape * (logs - log_scale)
    return np.asarray(math.log(shape) + z - logs - np.exp(np.minimum(z, 700)))


def _log_densities(
    x: Array, logs: Array, share: float, weibull: tuple[float, float], normal: tuple[float, float]
) -> tuple[Array, Array]:
    mean, deviation = normal
    above = math.log(share / deviation) - 0.5 * ((x - mean) / deviation) ** 2 - 0.5 * math.log(2 * math.pi)
    return math.log1p(-share) + _log_weibull(logs, *weibull), np.asarray(above)
