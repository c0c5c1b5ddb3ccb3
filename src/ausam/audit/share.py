"""The share of wrong labels, from a review.

The losses rank the samples, but they do not say how many labels are wrong. A person does: 200 samples, drawn at random
within four strata of the ranking, give an unbiased share with an interval that covers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ausam.audit.review import Decision

STRATA = (0.01, 0.05, 0.2, 1.0)  # upper ends, as parts of the ranking
SLIPS = 0.05  # share of mistaken reviews that the wide interval allows for


@dataclass(frozen=True)
class Share:
    """The estimated share of wrong labels with its 95 % interval."""

    share: float
    low: float
    high: float
    low_if_slips: float  # lower end if up to 5 % of the reviews are mistaken
    reviewed: int

    def __str__(self) -> str:
        def percent(part: float) -> str:
            return f"{100 * part:.1f}"

        return (
            f"{percent(self.share)} % of the labels are wrong (95 % interval {percent(self.low)} to "
            f"{percent(self.high)}, from {self.reviewed} reviewed samples; from {percent(self.low_if_slips)} if up to "
            f"{100 * SLIPS:.0f} % of the reviews are mistaken)."
        )


@dataclass(frozen=True)
class Review:
    """Samples to be reviewed for the share: drawn at random within strata of the ranking."""

    index: NDArray[np.int64]  # the drawn samples
    stratum: NDArray[np.int64]  # of each drawn sample
    sizes: NDArray[np.int64]  # samples in each stratum

    def share(self, decisions: Iterable[Decision]) -> Share:
        """Estimate the share of wrong labels from the decisions about the drawn samples.

        Relabelled and removed samples count as wrong, kept ones as right. Undecided and unsure ones are left out. Each
        stratum has an exact (Clopper and Pearson 1934) interval. Their weighted sum follows Zou and Donner (2008).
        """
        n, k = self._counts(decisions)
        if (n == 0).any():
            raise ValueError(
                f"Too few of the {len(self.index)} drawn samples are reviewed: a stratum of the ranking has none. "
                "Review the rest of them."
            )
        ends = np.array([_interval(*row) for row in zip(k.tolist(), n.tolist(), self.sizes.tolist(), strict=True)])
        weight, p = self.sizes / self.sizes.sum(), k / n
        share = float(weight @ p)
        low = max(0.0, share - math.sqrt(float((weight**2) @ (p - ends[:, 0]) ** 2)))
        high = min(1.0, share + math.sqrt(float((weight**2) @ (ends[:, 1] - p) ** 2)))
        return Share(share, low, high, max(0.0, (low - SLIPS) / (1 - 2 * SLIPS)), int(n.sum()))

    def expected_wrong(self, order: ArrayLike, decisions: Iterable[Decision], count: int = 500) -> tuple[float, int]:
        """The expected number of wrong labels among the next ``count`` undecided samples of the ranking.

        Returns that number and how many samples it is about. It uses the rate of each stratum.
        """
        decisions = list(decisions)
        n, k = self._counts(decisions)
        decided = {decision.index for decision in decisions}
        stratum = np.repeat(np.arange(len(self.sizes)), self.sizes)
        following = [s for i, s in zip(np.asarray(order).tolist(), stratum, strict=True) if i not in decided][:count]
        rate = k / np.maximum(1, n)
        return float(rate[following].sum()), len(following)

    def _counts(self, decisions: Iterable[Decision]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Reviewed samples and wrong labels in each stratum."""
        kinds = {decision.index: decision.kind for decision in decisions}
        n, k = np.zeros(len(self.sizes), np.int64), np.zeros(len(self.sizes), np.int64)
        for i, stratum in zip(self.index.tolist(), self.stratum.tolist(), strict=True):
            kind = kinds.get(i, "unsure")
            if kind != "unsure":
                n[stratum] += 1
                k[stratum] += kind != "keep"
        return n, k


def draw_review(order: ArrayLike, size: int = 200, seed: int = 0) -> Review:
    """Draw samples to review: more from the top of the ranking than a plain random sample would have.

    >>> from ausam.audit import Decision, draw_review
    >>> review = draw_review(range(1000), size=200)
    >>> decisions = [Decision(i, "relabel" if i < 100 else "keep") for i in review.index.tolist()]
    >>> round(review.share(decisions).share, 3)
    0.104

    Arguments:
        order: all samples, most suspect first.
        size: how many to draw, >= 8.
        seed: for the draw.
    """
    ranking = np.asarray(order, np.int64)
    n = len(ranking)
    if size < 2 * len(STRATA):
        raise ValueError(f"size is {size}. Draw at least {2 * len(STRATA)} samples.")
    ends = np.unique(np.maximum(1, np.round(np.array(STRATA) * n).astype(np.int64)))
    sizes = np.diff(ends, prepend=0)
    counts = _allocate(sizes, min(size, n))
    rng = np.random.default_rng(seed)
    drawn = [
        np.sort(rng.choice(np.arange(end - length, end), count, replace=False))
        for end, length, count in zip(ends, sizes, counts, strict=True)
    ]
    return Review(ranking[np.concatenate(drawn)], np.repeat(np.arange(len(sizes)), counts), sizes)


def _allocate(sizes: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Numbers of draws that grow with the square root of the stratum: small strata at the top count for more."""
    part = total * np.sqrt(sizes) / np.sqrt(sizes).sum()
    counts: NDArray[np.int64] = np.minimum(sizes, np.maximum(1, np.floor(part))).astype(np.int64)
    while counts.sum() < total:
        room = np.where(counts < sizes, np.sqrt(sizes) / counts, 0.0)
        counts[np.argmax(room)] += 1
    return counts


def _interval(k: int, n: int, size: int) -> tuple[float, float]:
    """The exact 95 % interval of a rate, from k of n. The rate itself if the whole stratum is reviewed."""
    if n >= size:
        return k / n, k / n
    low = _solve(lambda p: 1 - _cdf(k - 1, n, p), 0.025) if k else 0.0
    high = _solve(lambda p: 1 - _cdf(k, n, p), 0.975) if k < n else 1.0
    return low, high


def _cdf(k: int, n: int, p: float) -> float:
    """The probability of at most k of n."""
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


def _solve(rising: Callable[[float], float], value: float) -> float:
    """Where a rising function of [0, 1] has this value, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return (low + high) / 2
