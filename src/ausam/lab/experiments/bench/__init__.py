"""``ausam bench step``: what a step and an epoch's plan cost, each at two sizes, as ratios measured side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TextIO

from ausam.lab.experiments.bench import overhead, peak, planning, speed

PARTS: dict[str, Callable[[int], Iterator[str]]] = {
    "memory": speed.in_memory,
    "loading": speed.loading,
    "overhead": overhead.large,
    "python": overhead.small,
    "peak": peak.peak,
    "planning": planning.planning,
}


def main(repeats: int, only: str, out: TextIO) -> int:
    """Run all parts, or one, and write a line for each figure as soon as it is there."""
    if only and only not in PARTS:
        raise ValueError(f'There is no part "{only}" of the benchmark. Known: {", ".join(PARTS)}.')
    for name, part in PARTS.items():
        if only in ("", name):
            for line in part(repeats):
                out.write(line + "\n")
                out.flush()
    return 0
