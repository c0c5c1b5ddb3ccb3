"""Which labels look wrong: pure functions of the losses, and their result. The audit and ``Trusted`` both decide here.

A network learns right labels first (Arpit et al. 2017): for some time their losses are low and those of wrong labels
high. Right labels form a group, or two, easy and hard ones; wrong labels form another above them. If it lies apart,
its samples are flagged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ausam.common.mixture import Groups, fit_groups

Array = NDArray[Any]
Outcome = Literal["flagged", "not apart", "not learned", "unseen"]

APART = 2.5  # least distance (Ashman's D) of the two highest groups
GAIN = 10.0  # least gain in BIC over one group
EVEN = math.log(2.0)  # above it the network prefers another class
LEARNED = 25  # percentile that stands for the part that is learned, however many labels are wrong
VISITS = 2  # of a sample; with fewer it is ranked, but not judged
REST = 0.85  # least part of the samples below the limit that is learned
FEW = 5  # a class, or a group, with fewer known samples says nothing


@dataclass(frozen=True)
class LabelErrors:
    """All samples, ranked by how wrong their labels look, and those that are flagged.

    The rank is always there; the flag only if the losses fall into two groups. A sample that is not flagged may still
    have a wrong label. How many labels are wrong, only a review says: see :func:`ausam.audit.draw_review`.

    Attributes:
        order: dataset index of every sample, most suspect first. Samples that were never seen come last.
        flagged: of every sample, whether its label is flagged.
        loss: of every sample, the averaged loss that ranks it; NaN if it was never seen.
        probability: of every sample, that it belongs to the highest group; NaN where nothing was decided. It
            is certain of groups, not of labels.
        likely: of every sample, the class that the network preferred to its label; -1 if unknown.
        distance: Ashman's D of the two highest groups: above 2.5 they may lie apart. NaN if there were too few losses.
        limit: the loss above which a label is flagged; infinite if the groups do not lie apart.
        unlearned: the classes that are not learned yet, whose samples are not flagged.
        outcome: "flagged"; "not apart" if the losses do not fall into groups; "not learned" if not even a quarter of
            the samples is learned; "unseen" if there was nothing to judge.
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
    """Rank samples by their losses, and flag the highest group if it lies apart.

    Normal distributions are fitted to the logarithms of the losses: two, or three if two do not lie apart. They do if

    - Ashman's D > 2.5, and the fit is better than one normal distribution by 10 in BIC;
    - the rest is learned: the group below has a mean loss below log 2, and so have 85 % of the samples below the limit;
    - nearly all of the highest group is not: its mean less two deviations is above log 2.

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
    groups = standing_apart(np.where(known, loss, np.nan))
    limit, unlearned = math.inf, np.zeros(0, np.int64)
    flagged, probability = np.zeros(len(loss), bool), np.full(len(loss), np.nan)
    if groups is not None and lie_apart(groups, np.where(known, loss, np.nan)):
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
        _outcome(loss, flagged, known),
    )


def _outcome(loss: Array, flagged: Array, known: Array) -> Outcome:
    if flagged.any():
        return "flagged"
    if not known.any():
        return "unseen"
    return "not learned" if np.percentile(loss[known], LEARNED) > EVEN else "not apart"


def standing_apart(loss: Array) -> Groups | None:
    """The groups of losses: two, or, if these do not lie apart, three if those do, with hard samples in between."""
    two = fit_groups(loss)
    if two is None or lie_apart(two, loss) or np.count_nonzero(loss > EVEN) < FEW:
        return two
    three = fit_groups(loss, 3)
    return three if three is not None and lie_apart(three, loss) else two


def lie_apart(groups: Groups, loss: Array) -> bool:
    """Whether the highest group lies apart: nearly all of it is not learned, and nearly all of the rest is."""
    rest = loss[loss <= max(EVEN, groups.crossing)]
    rest_is_learned = int((rest < EVEN).sum()) > REST * len(rest) and groups.lower < EVEN
    return rest_is_learned and groups.least > EVEN and groups.gain > GAIN and groups.distance > APART


def unlearned_classes(loss: Array, limit: float, labels: Array) -> Array:
    """The classes of which more than half is above the limit, or that have too few known samples.

    The network has no opinion of the labels of such a class, so none of them is flagged.
    """
    known = np.isfinite(loss)
    n = np.bincount(labels[known], minlength=int(labels.max()) + 1)
    above = np.bincount(labels[known & (np.nan_to_num(loss) > limit)], minlength=len(n))
    return np.flatnonzero((n < FEW) | (above > 0.5 * n))
