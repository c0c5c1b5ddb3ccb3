"""Which samples a training does not trust: wrong labels keep a high loss while the others are learnt."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ausam.common.mixture import TwoGroups, two_groups

Array = NDArray[Any]

APART = 2.0  # least distance (Ashman's D) of the two groups
GAIN = 10.0  # least gain in BIC of two groups over one
EVEN = math.log(2.0)  # a cross-entropy below it gives the label more than even odds
FEW = 5  # a class with fewer known samples says nothing about its labels


def groups_apart(loss: Array, guessing: float) -> TwoGroups | None:
    """The two groups of averaged losses, if there really are two: learnt samples, and samples that resist.

    None unless two groups describe the losses clearly better than one, the lower group is learnt (below half the loss
    of guessing), and the upper one is not (above half the loss of guessing, and above log 2).

    Arguments:
        loss: averaged loss of each sample; NaN where unknown.
        guessing: the loss of guessing, log C.
    """
    groups = two_groups(loss)
    return groups if groups is not None and are_apart(groups, guessing) else None


def are_apart(groups: TwoGroups, guessing: float) -> bool:
    """Whether two fitted groups are really two, the lower one learnt and the upper one not."""
    learnt, resists = groups.lower < guessing / 2, groups.upper > max(EVEN, guessing / 2)
    return groups.gain > GAIN and groups.distance > APART and learnt and resists


def threshold(groups: TwoGroups | None) -> float:
    """The averaged loss above which a sample is suspected: where the groups cross, at least log 2; infinite if none."""
    return math.inf if groups is None else max(EVEN, groups.crossing)


def unlearnt_classes(loss: Array, limit: float, labels: Array) -> Array:
    """The classes of which more than half is above the limit, or that have too few known samples.

    Such a class is not learnt yet: the network has no opinion of its labels, so none of them is suspected. This is
    what keeps a rare class from being dropped.
    """
    known = np.isfinite(loss)
    n = np.bincount(labels[known], minlength=int(labels.max()) + 1)
    above = np.bincount(labels[known & (np.nan_to_num(loss) > limit)], minlength=len(n))
    return np.flatnonzero((n < FEW) | (above > 0.5 * n))
