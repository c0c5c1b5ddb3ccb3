"""``ausam bench step``: what a step, an epoch's plan and an exchange cost on this machine, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TextIO

from ausam_lab.experiments.bench import exchange, peak, planning, speed
from ausam_lab.experiments.side_by_side import OnTurn

PARTS: dict[str, Callable[[int, OnTurn], Iterator[str]]] = {
    "memory": speed.in_memory,
    "loading": speed.loading,
    "peak": peak.peak,
    "planning": planning.planning,
    "exchange": exchange.exchange,
}


def main(repeats: int, only: str, out: TextIO, on_turn: OnTurn) -> int:
    """Run all parts, or one, and write a line for each figure as soon as it is measured."""
    if only and only not in PARTS:
        raise ValueError(f'The benchmark has no part "{only}". Known: {", ".join(PARTS)}.')
    for name, part in PARTS.items():
        if only in ("", name):
            for line in part(repeats, on_turn):
                out.write(line + "\n")
                out.flush()
    return 0
