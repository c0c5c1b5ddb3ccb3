"""Side-by-side measurement: on a shared machine, only ratios within one run are meaningful."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(
    tasks: Mapping[str, Callable[[], object]],
    repeats: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each task, ``repeats`` times; tasks take turns in a rotating order, and warm-up is not counted."""
    names = list(tasks)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warmup, repeats):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = clock()
            tasks[name]()
            spent = clock() - start
            if turn >= 0:
                seconds[name].append(spent)
    return seconds


def median_ratio(a: list[float], b: list[float]) -> float:
    """How many times longer ``a`` took than ``b``, by their medians."""
    return statistics.median(a) / statistics.median(b)
