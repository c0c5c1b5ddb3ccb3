"""Durations as text."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A duration in a suitable unit.

    >>> [duration(seconds) for seconds in (9, 600, 7200, 1e6)]
    ['9 s', '10.0 min', '2.0 h', '11.6 days']
    """
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
