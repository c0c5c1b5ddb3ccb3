"""Side-by-side measurement: on a shared machine, only ratios within one run are meaningful."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

# Called with what is measured, and how many of its turns are done, of how many.
OnTurn = Callable[[str, int, int], None]


def interleaved(
    tasks: Mapping[str, Callable[[], object]],
    repeats: int,
    warmup: int = 2,
    title: str = "",
    on_turn: OnTurn = lambda *_: None,
) -> dict[str, list[float]]:
    """Seconds of each task, ``repeats`` times; tasks take turns in a rotating order, and warm-up is not counted."""
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}. Measure at least once.")
    names = list(tasks)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warmup, repeats):
        on_turn(title, turn + warmup, repeats + warmup)
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            tasks[name]()
            spent = time.perf_counter() - start
            if turn >= 0:
                seconds[name].append(spent)
    return seconds


def median_ratio(a: list[float], b: list[float]) -> float:
    """How many times longer ``a`` took than ``b``, by their medians."""
    return statistics.median(a) / statistics.median(b)
