"""RST's schedules: how the probability of a SAM step rises during training while its mean stays ``p``."""

from __future__ import annotations

import math
from collections.abc import Callable

# u is the finished fraction of training, from 0 to 1, and m = min(p, 1 - p) is the most that p can vary.
SCHEDULES: dict[str, Callable[[float, float, float], float]] = {
    "constant": lambda p, _m, _u: p,
    "piecewise": lambda p, _m, u: float(u >= 1 - p),
    "linear": lambda p, m, u: p + m * (2 * u - 1),
    "trigonometric": lambda p, m, u: p - m * math.cos(math.pi * u),
}


def probability(schedule: str, p: float, step: int, total_steps: int | None) -> float:
    """``p(t)``, t counted from 0; constant from ``total_steps`` on."""
    return SCHEDULES[schedule](p, min(p, 1 - p), min(step / (total_steps or 1), 1.0))


def needs_total(schedule: str, total_steps: int | None) -> None:
    """Raise a ValueError for a rising schedule without ``total_steps``."""
    if schedule != "constant" and total_steps is None:
        raise ValueError(
            f"RST: total_steps is None, but the {schedule} schedule rises over the whole training. "
            "Pass its number of optimizer steps: total_steps=epochs * len(loader)."
        )
