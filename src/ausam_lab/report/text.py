"""Text for people: figures with their spread, and lists in sentences."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

NONE = "–"
SKIPPED_BECAUSE = "because the loss or the gradient was not finite"
WIDTH = 80  # of a terminal
BEST = "●"  # marks the best figure of a column


def wrapped(text: str, columns: int | None = None) -> str:
    """A paragraph in lines that fit so many columns, 80 at most. A path stays whole, so that it can be copied.

    >>> wrapped("see /a/folder-with-a-name/report.html", 20).splitlines()
    ['see', '/a/folder-with-a-name/report.html']
    """
    width = min(columns or WIDTH, WIDTH) - 1
    lines = textwrap.fill(unbroken(text), width, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\u00a0", " ")


def unbroken(text: str) -> str:
    """Text that keeps a figure, its spread and its unit on one line."""
    return text.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")


def show(value: float | None, digits: int, std: float | None = None) -> str:
    """Write a figure with its spread. A dash where it is missing."""
    return NONE if value is None else f"{value:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def join(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def moment(created: str) -> str:
    """A time in ISO form, as people write it: ``2026-01-31 09:05 UTC``. Other text stays as it is."""
    return re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)?\+00:00$", r"\1 \2 UTC", created)


def percent(value: float) -> str:
    """A fraction in percent."""
    return f"{100 * value:.0f} %" if not abs(value) < 0.0995 else f"{100 * value:.2g} %"


def number(value: float) -> str:
    """A figure with three significant digits: ``0.0670``, ``1.50``, ``1,624``."""
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e9 else f"{value:#.3g}".rstrip(".")


def duration(seconds: float) -> str:
    """A duration in a suitable unit.

    >>> [duration(seconds) for seconds in (9, 600, 7200, 1e6)]
    ['9 s', '10.0 min', '2.0 h', '11.6 days']
    """
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"


def skipped_text(skipped: int, steps: int | None) -> str:
    """The skipped steps of a run, for its last line. Empty if there were none. ``steps`` were taken, if known."""
    of = "" if steps is None else f" of {steps + skipped:,}"
    return f"{skipped:,}{of} steps skipped, {SKIPPED_BECAUSE}" if skipped else ""
