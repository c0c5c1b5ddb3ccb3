"""From a difference to a verdict: the one place that decides which of two rows is better."""

from __future__ import annotations

from enum import Enum

from ausam_lab.records.comparison import Difference
from ausam_lab.report.text import NONE


class Verdict(Enum):
    """What a difference over seeds says; the value is what a table shows."""

    BETTER = "better"
    WORSE = "worse"
    LEVEL = "level"
    UNCLEAR = "no difference shown"
    ONE_SEED = "open (one seed)"
    UNFINISHED = "unfinished"


def verdict(difference: Difference | None, *, lower_is_better: bool = False, margin: float = 0.0) -> Verdict:
    """What the difference of a row from another says about the row.

    Equal differences of several seeds have no spread, hence no p: whatever their mean, no difference is shown.

    >>> verdict(Difference(n=3, mean=1.5, low=1.25, high=1.75, p=0.006)).value
    'better'
    >>> verdict(Difference(n=2, mean=1.5)).value
    'no difference shown'
    >>> verdict(Difference(n=9, mean=0.1, low=-0.1, high=0.3, p=0.3), margin=0.5).value
    'level'

    Arguments:
        difference: over the common seeds; None without such a seed.
        lower_is_better: of the score.
        margin: two rows are level if the whole interval lies within it, >= 0; 0: never.
    """
    if difference is None:
        return Verdict.UNFINISHED
    if difference.n == 1:
        return Verdict.ONE_SEED
    if not difference.clear:
        low, high = difference.low, difference.high
        within = low is not None and high is not None and -margin < low and high < margin
        return Verdict.LEVEL if within else Verdict.UNCLEAR
    return Verdict.BETTER if (difference.mean > 0) != lower_is_better else Verdict.WORSE


def interval(difference: Difference | None, digits: int = 2) -> str:
    """A difference with its 95 % interval: ``+0.31 [-0.20, +0.82]``; a star if it is significant."""
    if difference is None:
        return NONE
    text = f"{difference.mean:+.{digits}f}"
    if difference.low is not None and difference.high is not None:
        text += f" [{difference.low:+.{digits}f}, {difference.high:+.{digits}f}]"
    return (text + ("*" if difference.clear else "")).replace("-", "−")


def p_text(difference: Difference | None) -> str:
    """The corrected p with three decimals; a dash where it is unknown."""
    return NONE if difference is None or difference.p is None else f"{max(difference.p, 0.001):.3f}"
