"""The table behind an audit: 52 bytes per sample, updated from the losses of each step.

The losses that decide are averaged over the later visits of a sample: the first ones are those of a network with random
weights. Two sums do it in bounded memory. At every visit whose number is a power of two the newer sum becomes the older
one and a new one begins. Both together hold the last half to three quarters of the visits. A network may memorise wrong
labels later, so the averages are kept as they were when right and wrong labels stood farthest apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ausam.common.groups import FLOOR
from ausam.common.label_errors import EVEN, VISITS, LabelErrors, flag, lie_apart, standing_apart

Array = NDArray[Any]
Table = dict[str, Array]

COLUMNS: dict[str, Any] = {
    "visits": np.int32,
    "sum": np.float32,  # of the loss over all visits
    "square": np.float32,  # of the squared loss over all visits
    "last": np.float32,  # loss at the latest visit
    "total": np.float32,  # of the margin loss over all visits
    "older": np.float32,  # sum of the log of the margin loss over an earlier window of visits
    "newer": np.float32,  # and over the window since
    "best": np.float32,  # average of the margin loss when the groups stood farthest apart; NaN before
    "likely": np.int32,  # the strongest other class then; -1 if unknown
    "rival": np.int32,  # the strongest other class most often, by majority vote (Boyer and Moore 1991)
    "votes": np.int32,  # by how many votes
    "learned": np.int32,  # visit since which the network has always agreed; 0: it does not now
    "forgotten": np.int32,  # times that agreement was lost
}
NEVER = -np.inf  # the groups never stood apart
CEILING = 30.0  # of a margin loss: a network that diverges for a step has larger ones
DIVERGED = 0.01  # of the samples with larger ones: whatever stands apart then is no wrong label


def empty_table(n: int) -> Table:
    """A table of ``n`` samples that were never visited."""
    table = {name: np.zeros(n, dtype) for name, dtype in COLUMNS.items()}
    table["last"][:] = table["best"][:] = np.nan
    table["likely"][:] = table["rival"][:] = -1
    return table


def visit(table: Table, index: Array, loss: Array, margin: Array, rival: Array) -> None:
    """Add one visit each of samples, in which one may occur several times.

    Arguments:
        table: changed in place.
        index: of each sample.
        loss: its loss. A visit without a finite one does not count.
        margin: its margin loss, or its loss where no outputs are known.
        rival: the strongest other class. -1 where it is not known.
    """
    good = np.flatnonzero(np.isfinite(loss) & np.isfinite(margin))
    for part in occurrences(index[good]):
        _visit_once(table, *(column[good[part]] for column in (index, loss, margin, rival)))


def _visit_once(table: Table, at: Array, loss: Array, margin: Array, rival: Array) -> None:
    visits = table["visits"][at] + 1
    begins = (visits & (visits - 1)) == 0  # a power of two
    margin = np.clip(margin, FLOOR, CEILING)
    newer, log = table["newer"][at], np.log(margin)
    table["older"][at] = np.where(begins, newer, table["older"][at])
    table["newer"][at] = np.where(begins, 0, newer) + log
    table["visits"][at] = visits
    table["total"][at] += margin
    table["sum"][at] += loss
    with np.errstate(over="ignore"):  # of a network that diverges
        table["square"][at] += loss * loss
    table["last"][at] = loss
    agrees, learned = margin < np.log(2), table["learned"][at]
    table["forgotten"][at] += (learned > 0) & ~agrees
    table["learned"][at] = np.where(agrees, np.where(learned > 0, learned, visits), 0)
    known, votes = rival >= 0, table["votes"][at]
    new = known & (votes == 0)
    same = new | (rival == table["rival"][at])
    table["rival"][at] = np.where(new, rival, table["rival"][at])
    table["votes"][at] = votes + np.where(known, np.where(same, 1, -1), 0)


def occurrences(index: Array) -> Iterator[Array]:
    """The positions of the first occurrence of every value, then of the second, and so on.

    >>> import numpy as np
    >>> [part.tolist() for part in occurrences(np.array([5, 3, 5, 5]))]
    [[0, 1], [2], [3]]
    """
    order = np.argsort(index, kind="stable")
    begins = np.flatnonzero(np.r_[True, np.diff(index[order]) != 0])[: len(index)]
    number = np.empty(len(index), np.int64)
    number[order] = np.arange(len(index)) - np.repeat(begins, np.diff(np.r_[begins, len(index)]))
    for i in range(int(number.max(initial=-1)) + 1):
        yield np.flatnonzero(number == i)


def averages(table: Table) -> Array:
    """The geometric mean of the margin losses of every sample over its later visits. NaN before the first."""
    visits = table["visits"].astype(np.int64)
    begin = 1 << (np.frexp(visits)[1].astype(np.int64) - 2).clip(0)  # half of the largest power of two up to visits
    total = table["older"].astype(np.float64) + table["newer"]
    return np.where(visits > 0, np.exp(total / np.maximum(1, visits - begin + 1)), np.nan)


def keep_best(table: Table, before: float) -> float:
    """Copy the averages if the groups stand apart, and farther than before. Returns how far they stood at best."""
    average = np.where(table["visits"] >= VISITS, averages(table), np.nan)
    groups = standing_apart(average)
    if groups is None or groups.distance <= before or not lie_apart(groups, average) or diverges(table):
        return before
    table["best"][:] = averages(table)
    table["likely"][:] = table["rival"]
    return groups.distance


def diverges(table: Table) -> bool:
    """Whether the latest loss of many samples is above the ceiling."""
    last = table["last"][table["visits"] >= VISITS]
    return bool(len(last)) and float((last > CEILING).mean()) > DIVERGED


def judge(table: Table, labels: Array | None, visits: int = VISITS) -> LabelErrors:
    """All samples, ranked and flagged by the averages of the best time.

    If there was none, nothing is flagged, and the mean over all visits ranks: it forgets nothing.
    """
    judged, now = table["visits"] >= visits, averages(table)
    if (found := np.isfinite(table["best"])).any():
        return flag(np.where(found, table["best"], now), labels, likely_class(table), judged)
    with np.errstate(invalid="ignore"):
        mean = table["total"] / table["visits"].astype(np.float64)
    errors = flag(now, labels, likely_class(table), judged, least=np.inf if diverges(table) else EVEN)
    return errors if len(errors) else replace(errors, loss=mean)


def likely_class(table: Table) -> Array:
    """The strongest other class of every sample at that time. -1 if unknown."""
    likely: Array = np.where(np.isnan(table["best"]), table["rival"], table["likely"])
    return likely
