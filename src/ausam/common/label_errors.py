"""Which labels look wrong: pure functions of the losses, and their result. The audit and ``Trusted`` both decide here.

A network learns right labels first (Arpit et al. 2017): for some time their losses are low and those of wrong labels
high. Right labels form a group, or two, easy and hard ones. Wrong labels form another above them. If it lies apart,
its samples are flagged. If it does not, those are flagged which the network contradicts with more confidence than it
has where it errs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ausam.common.groups import FLOOR, Groups, fit_groups

Array = NDArray[Any]
Outcome = Literal["flagged", "not apart", "not learned", "unseen"]

APART = 2.5  # least distance (Ashman's D) of the two highest groups
GAIN = 10.0  # least gain in BIC over one group
EVEN = math.log(2.0)  # above it the network prefers another class
LOW = EVEN / 2  # typical loss of what is learned
LEARNED = 25  # percentile that stands for the part that is learned, however many labels are wrong
VISITS = 2  # of a sample; with fewer it is ranked, but not judged
CLASSES = 1 / 3  # most of the samples that may be in classes that are not learned
REST = 0.85  # least part of the samples below the limit that is learned
FEW = 5  # a class, or a group, with fewer known samples says nothing

# The tail
HARD = 0.1  # most of the flagged that may be hard samples instead
WINDOWS = 64
IN_WINDOW = 10  # least number of contradicted samples in a window


@dataclass(frozen=True)
class LabelErrors:
    """All samples, ranked by how wrong their labels look, and those that are flagged.

    The rank is always there. The flag only where the losses tell wrong labels from hard samples. A sample that is not
    flagged may still have a wrong label. How many labels are wrong, only a review says: see
    :func:`ausam.audit.draw_review`.

    Attributes:
        flagged: of every sample, whether its label is flagged.
        loss: of every sample, the averaged loss that ranks it. NaN if it was never seen.
        likely: of every sample, the class that the network preferred to its label. -1 if unknown.
        distance: Ashman's D of the two highest groups: above 2.5 they may lie apart. NaN if there were too few losses.
        limit: the loss above which a label is flagged. Infinite if none is.
        unlearned: the classes that are not learned yet, whose samples are not flagged.
        outcome: "flagged". "not apart" if wrong labels do not stand out. "not learned" if not even a quarter of
            the samples is learned. "unseen" if there was nothing to evaluate.
    """

    flagged: Array
    loss: Array
    likely: Array
    distance: float
    limit: float
    unlearned: Array
    outcome: Outcome

    @cached_property  # the policy that flags ten million samples does not rank them
    def order(self) -> Array:
        """Dataset index of every sample, most suspect first. Samples that were never seen come last."""
        return rank(self.loss)

    @property
    def index(self) -> Array:
        """The flagged samples, most suspect first."""
        flagged: Array = self.order[self.flagged[self.order]]
        return flagged

    def __len__(self) -> int:
        """The number of flagged samples."""
        return int(self.flagged.sum())

    def __repr__(self) -> str:
        return f"LabelErrors({len(self):,} of {len(self.loss):,} labels flagged, outcome={self.outcome!r})"


def rank(loss: ArrayLike) -> Array:
    """The samples by falling loss, missing ones last.

    >>> import math
    >>> from ausam.audit import rank
    >>> rank([0.1, math.nan, 3.0]).tolist()
    [2, 0, 1]
    """
    return np.argsort(-np.asarray(loss, np.float64), kind="stable")  # NaN last


def flag(
    loss: ArrayLike,
    labels: ArrayLike | None = None,
    likely: ArrayLike | None = None,
    judged: Array | None = None,
    least: float = EVEN,
    tail: bool = True,
) -> LabelErrors:
    """Rank samples by their losses, and flag the highest group if it lies apart, otherwise the tail if it stands out.

    Normal distributions are fitted to the logarithms of the losses: two, or three if two do not lie apart. They do if

    - Ashman's D > 2.5, and the fit is better than one normal distribution by 10 in BIC.
    - The rest is learned. The mean loss of the group below is under log(2) / 2, and 85 % of the samples below the limit
      are under log 2.
    - Nearly all of the highest group is not: its mean less two deviations is above log 2.

    If the groups do not lie apart, :func:`tail_limit` decides.

    >>> import numpy as np
    >>> from ausam.audit import flag
    >>> errors = flag(np.concatenate([np.linspace(0.01, 0.05, 80), np.linspace(2.0, 4.0, 20)]))
    >>> len(errors), int(errors.order[0]), errors.outcome
    (20, 99, 'flagged')

    Arguments:
        loss: averaged margin loss, or cross-entropy, of each sample. NaN where unknown.
        labels: class of each sample. A class of which most samples are above the limit is not learned, so none of its
            samples is flagged. This protects rare classes. None is flagged if such classes have a third.
        likely: class that the network prefers to the label, or -1.
        judged: mask of the samples that are seen often enough to be evaluated. If None, all.
        least: no loss below it is flagged.
        tail: whether the tail is flagged if there are no groups.
    """
    loss = np.asarray(loss, np.float64)
    known = np.isfinite(loss) if judged is None else np.isfinite(loss) & judged
    hidden = ~(known | np.isnan(loss))
    seen = np.where(known, loss, np.nan) if hidden.any() else loss  # no copy of ten million losses without need
    groups = standing_apart(seen)
    limit, unlearned = math.inf, np.zeros(0, np.int64)
    if groups is not None and lie_apart(groups, seen):
        limit = max(least, groups.crossing)
    elif tail:
        limit = max(least, tail_limit(seen))
    doubtful = known
    if labels is not None and limit < math.inf:
        labels = np.asarray(labels)
        unlearned = unlearned_classes(seen, limit, labels)
        doubtful = known & np.isin(np.arange(labels.max() + 1), unlearned, invert=True)[labels]
        if doubtful.sum() < (1 - CLASSES) * known.sum():
            limit = math.inf
    flagged = np.zeros(len(loss), bool)
    flagged[doubtful] = loss[doubtful] > limit
    return LabelErrors(
        flagged,
        loss,
        np.broadcast_to(np.int64(-1), len(loss)) if likely is None else np.asarray(likely, np.int64),
        math.nan if groups is None else groups.distance,
        limit,
        unlearned,
        _outcome(loss, flagged, known),
    )


def _outcome(loss: Array, flagged: Array, known: Array) -> Outcome:
    if flagged.any():
        return "flagged"
    if not known.any():
        return "unseen"
    return "not learned" if np.percentile(loss[known], LEARNED, overwrite_input=True) > EVEN else "not apart"


def standing_apart(loss: Array) -> Groups | None:
    """The groups of losses. Three, with hard samples in between, if these lie apart and two do not. Otherwise two."""
    two = fit_groups(loss)
    if two is None or lie_apart(two, loss) or np.count_nonzero(loss > EVEN) < FEW:
        return two
    three = fit_groups(loss, 3)
    return three if three is not None and lie_apart(three, loss) else two


def lie_apart(groups: Groups, loss: Array) -> bool:
    """Whether the highest group lies apart: nearly all of it is not learned, and nearly all of the rest is."""
    rest = loss[loss <= max(EVEN, groups.crossing)]
    rest_is_learned = int((rest < EVEN).sum()) > REST * len(rest) and groups.lower < LOW
    return rest_is_learned and groups.least > EVEN and groups.gain > GAIN and groups.distance > APART


def unlearned_classes(loss: Array, limit: float, labels: Array) -> Array:
    """The classes of which more than half is above the limit, or that have too few known samples.

    The losses say nothing about the labels of such a class, so none of them is flagged.
    """
    known = np.isfinite(loss)
    n = np.bincount(labels[known], minlength=int(labels.max()) + 1)
    above = np.bincount(labels[known & (loss > limit)], minlength=len(n))
    return np.flatnonzero((n < FEW) | (above > 0.5 * n))


def tail_limit(loss: Array) -> float:
    """The loss above which at most a tenth can be hard samples with right labels. Infinite if there is none.

    Let ``a = |log(exp(loss) - 1)|``, the margin between the label and the class that the network prefers, or would.
    A calibrated network contradicts right labels with odds ``exp(-a)``: it errs seldom where it is sure. So on right
    labels the ratio of contradicted to confirmed samples falls by ``e`` per unit of ``a``. Wrong labels are
    contradicted however sure the network is. For each limit, the window of smaller ``a`` with the least ratio predicts
    how many samples above the limit are hard. Its count is taken two standard deviations too high, and the count above
    the limit two too low.

    >>> import numpy as np
    >>> confirmed, hard = np.linspace(0, 9, 9000), -np.log(np.linspace(1e-3, 1, 1000))
    >>> right = np.logaddexp(0, np.concatenate([-confirmed, hard]))
    >>> wrong = np.logaddexp(0, np.linspace(6, 9, 100))
    >>> tail_limit(right), 4 < tail_limit(np.concatenate([right, wrong])) < 6.5
    (inf, True)
    """
    loss = np.clip(loss[np.isfinite(loss)], FLOOR, -math.log(FLOOR))
    if not len(loss) or np.percentile(loss, LEARNED) > LOW or np.median(loss) > EVEN:
        return math.inf  # the network has not learned when to be sure
    margin = np.log(np.expm1(loss))
    against, confirmed = np.sort(margin[margin > 0]), np.sort(-margin[margin <= 0])
    step = max(IN_WINDOW, len(against) // WINDOWS)
    begins = np.arange(len(against) % step, len(against), step)
    edges = np.r_[0.0, against[begins]]
    count = len(against) - np.r_[0, begins]  # contradicted samples from each edge on
    weights = np.r_[0.0, np.exp(-confirmed[::-1]).cumsum()]
    weight = weights[len(confirmed) - np.searchsorted(confirmed, edges)]
    for i in range(1, len(edges)):
        inside, base = count[:i] - count[i], weight[:i] - weight[i]
        ratio = (inside + 2 * np.sqrt(inside + 1))[base > 0] / base[base > 0]
        if len(ratio) and ratio.min() * weight[i] <= HARD * (count[i] - 2 * math.sqrt(count[i])):
            return float(np.logaddexp(0, edges[i]))
    return math.inf
