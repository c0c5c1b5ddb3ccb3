"""Which labels look wrong: pure functions of the losses, and their result. The audit and ``Trusted`` both decide here.

A network learns right labels first (Arpit et al. 2017): for some time their losses are low and those of wrong labels
high, two groups that lie apart. Samples of the upper group are flagged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ausam.common.mixture import TwoGroups, two_groups

Array = NDArray[Any]
Outcome = Literal["flagged", "not apart", "not learned", "unseen"]

APART = 2.0  # least distance (Ashman's D) of the two groups
GAIN = 10.0  # least gain in BIC of two groups over one
EVEN = math.log(2.0)  # above it the network prefers another class
VISITS = 2  # of a sample; with fewer it is ranked, but not judged
FEW = 5  # a class with fewer known samples says nothing about its labels


@dataclass(frozen=True)
class LabelErrors:
    """All samples, ranked by how wrong their labels look, and those that are flagged.

    The rank is always there; the flag only if the losses fall into two groups. A sample that is not flagged may still
    have a wrong label. How many labels are wrong, only a review says: see :func:`ausam.audit.draw_review`.

    Attributes:
        order: dataset index of every sample, most suspect first. Samples that were never seen come last.
        flagged: of every sample, whether its label is flagged.
        loss: of every sample, the averaged loss that ranks it; NaN if it was never seen.
        probability: of every sample, that it belongs to the upper of the two groups; NaN where nothing was decided. It
            is certain of groups, not of labels.
        likely: of every sample, the class that the network preferred to its label; -1 if unknown.
        distance: Ashman's D of the two groups: above 2 they lie apart. NaN if there were too few losses.
        limit: the loss above which a label is flagged; infinite if the groups do not lie apart.
        unlearned: the classes that are not learned yet, whose samples are not flagged.
        outcome: "flagged"; "not apart" if the losses do not fall into two groups; "not learned" if even the lower
            group is not learned; "unseen" if there was nothing to judge.
    """

    order: Array
    flagged: Array
    loss: Array
    probability: Array
    likely: Array
    distance: float
    limit: float
    unlearned: Array
    outcome: Outcome

    @property
    def index(self) -> Array:
        """The flagged samples, most suspect first."""
        flagged: Array = self.order[self.flagged[self.order]]
        return flagged

    def __len__(self) -> int:
        """The number of flagged samples."""
        return int(self.flagged.sum())

    def __repr__(self) -> str:
        return f"LabelErrors({len(self):,} of {len(self.order):,} labels flagged, outcome={self.outcome!r})"


def rank(loss: ArrayLike) -> Array:
    """The samples by falling loss, missing ones last.

    >>> import math
    >>> rank([0.1, math.nan, 3.0]).tolist()
    [2, 0, 1]
    """
    return np.argsort(-np.asarray(loss, np.float64), kind="stable")  # NaN last


def flag(
    loss: ArrayLike,
    labels: Array | None = None,
    likely: Array | None = None,
    judged: Array | None = None,
    least: float = EVEN,
) -> LabelErrors:
    """Rank samples by their losses, and flag the upper of two groups if these lie apart.

    >>> import numpy as np
    >>> errors = flag(np.concatenate([np.linspace(0.01, 0.05, 80), np.linspace(2.0, 4.0, 20)]))
    >>> len(errors), int(errors.order[0]), errors.outcome
    (20, 99, 'flagged')

    Arguments:
        loss: averaged margin loss, or cross-entropy, of each sample; NaN where unknown.
        labels: class of each sample. A class of which most samples are above the limit is not learned, so none of its
            samples is flagged; this protects rare classes.
        likely: class that the network prefers to the label, or -1.
        judged: mask of the samples that are seen often enough to be judged; None: all.
        least: no loss below it is flagged.
    """
    loss = np.asarray(loss, np.float64)
    known = np.isfinite(loss) if judged is None else np.isfinite(loss) & judged
    groups = two_groups(np.where(known, loss, np.nan))
    limit, unlearned = math.inf, np.zeros(0, np.int64)
    flagged, probability = np.zeros(len(loss), bool), np.full(len(loss), np.nan)
    if groups is not None and lie_apart(groups):
        limit = max(least, groups.crossing)
        if labels is not None:
            unlearned = unlearned_classes(np.where(known, loss, np.nan), limit, labels)
        doubtful = known if labels is None else known & ~np.isin(labels, unlearned)
        flagged[doubtful] = loss[doubtful] > limit
        probability[known] = np.where(doubtful, groups.posterior(loss), 0.0)[known]
    return LabelErrors(
        rank(loss),
        flagged,
        loss,
        probability,
        np.full(len(loss), -1) if likely is None else np.asarray(likely, np.int64),
        math.nan if groups is None else groups.distance,
        limit,
        unlearned,
        _outcome(groups, flagged, known),
    )


def _outcome(groups: TwoGroups | None, flagged: Array, known: Array) -> Outcome:
    if flagged.any():
        return "flagged"
    if not known.any():
        return "unseen"
    return "not learned" if groups is not None and groups.lower > EVEN else "not apart"


def lie_apart(groups: TwoGroups) -> bool:
    """Whether two fitted groups are really two, the lower one learned and the upper one not."""
    return groups.gain > GAIN and groups.distance > APART and groups.lower < EVEN < groups.upper


def unlearned_classes(loss: Array, limit: float, labels: Array) -> Array:
    """The classes of which more than half is above the limit, or that have too few known samples.

    The network has no opinion of the labels of such a class, so none of them is flagged.
    """
    known = np.isfinite(loss)
    n = np.bincount(labels[known], minlength=int(labels.max()) + 1)
    above = np.bincount(labels[known & (np.nan_to_num(loss) > limit)], minlength=len(n))
    return np.flatnonzero((n < FEW) | (above > 0.5 * n))
