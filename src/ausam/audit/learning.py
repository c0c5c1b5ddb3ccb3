"""When samples were learnt: the rare ones late or never, the redundant ones at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ausam.audit.table import Array

if TYPE_CHECKING:
    from ausam.audit.suspects import Suspects

AT_ONCE = 0.1  # learnt within this fraction of its visits, and never lost
LATE = 0.5  # not learnt for good before this fraction of its visits
BY_HEART = 0.1  # learnt late by more than this share of the samples, and not learnt by less
FLOOR = 0.1  # odds of a redundant sample, relative to the others, in a draw in proportion to the loss


@dataclass(frozen=True)
class Rare:
    """Samples that were learnt late or never although their label is trusted.

    Attributes:
        index: dataset index of each, hardest first (by mean loss).
        share: their share of the visited samples.
        classes: number of samples of each class, smallest class first, if labels are known.
    """

    index: Array
    share: float
    classes: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Redundant:
    """Samples that were learnt at once and never lost.

    Attributes:
        index: dataset index of each, easiest first (by mean loss).
        share: their share of the visited samples.
        alpha: the fraction of each mini-batch that is left if these samples are drawn a tenth as often as the others,
            rounded up to a twentieth. A suggestion to try, not a measurement.
    """

    index: Array
    share: float
    alpha: float


def by_heart(columns: dict[str, Array]) -> bool:
    """Whether the network may know wrong labels by heart: it agrees with nearly all now, but learnt many late.

    It cannot be told from data that are right, but hard.
    """
    visits, learnt = columns["visits"], columns["learnt"]
    seen = visits >= 4
    late, never = seen & (learnt > LATE * visits), seen & (learnt == 0)
    return bool(late.sum() > BY_HEART * seen.sum() > never.sum())


def rare(columns: dict[str, Array], labels: Array | None, wrong: Suspects) -> Rare:
    """Samples that the network did not hold for good in the first half of their visits, without the suspects."""
    visits, learnt = columns["visits"], columns["learnt"]
    trusted = np.ones(len(visits), bool)
    trusted[wrong.index] = False
    late = (visits >= 4) & trusted & ((learnt == 0) | (learnt > LATE * visits))
    index = np.flatnonzero(late)
    seen = max(1, int((visits > 0).sum()))
    counts: tuple[tuple[int, int], ...] = ()
    if labels is not None:
        classes, sizes = np.unique(labels, return_counts=True)
        counts = tuple((int(classes[i]), int(sizes[i])) for i in np.argsort(sizes, kind="stable"))
    return Rare(index[np.argsort(-columns["mean"][index], kind="stable")], len(index) / seen, counts)


def redundant(columns: dict[str, Array]) -> Redundant:
    """Samples that the network held from the first tenth of their visits, or from the second visit, to the end."""
    visits, learnt = columns["visits"], columns["learnt"]
    early = (visits >= 4) & (learnt > 0) & (learnt <= np.maximum(2, AT_ONCE * visits)) & (columns["forgotten"] == 0)
    index = np.flatnonzero(early)
    share = len(index) / max(1, int((visits > 0).sum()))
    alpha = min(1.0, math.ceil(round(20 * (1 - (1 - FLOOR) * share), 9)) / 20)
    return Redundant(index[np.argsort(columns["mean"][index], kind="stable")], share, alpha)
