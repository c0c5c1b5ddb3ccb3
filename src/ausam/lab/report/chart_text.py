"""Text in charts: making it safe, guessing its width, and finding places for labels where they cover nothing."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Sequence

from ausam.lab.report.text import clean

FONT = 12.5  # in viewBox units; the report draws each chart for a wide and a narrow screen so that this stays legible
LINE = 16.0  # height of one line of text
Box = tuple[float, float, float, float]  # left, top, right, bottom


def esc(value: object) -> str:
    """Text made safe for HTML and SVG, in element content and in quoted attributes."""
    return html.escape(clean(value), quote=True)


def text_width(text: str) -> float:
    """Estimate the width of a label, generously: no font is at hand to measure it."""
    wide = {**dict.fromkeys("mwMW%@+", 0.95), **dict.fromkeys("iljft.,-|()", 0.42)}
    return FONT * sum(wide.get(c, 1.05 if ord(c) > 0x2E80 else 0.74 if c.isupper() else 0.64) for c in text)


def fit(text: str, room: float) -> str:
    """Cut the text with an ellipsis where it would be wider than `room`."""
    text = clean(text)
    cuts = (text[:n] + "…" for n in range(len(text) - 1, 0, -1))
    return next((t for t in (text, *cuts) if text_width(t) <= room), "…")


def _hit(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def nearest(box: Box, at: tuple[float, float]) -> tuple[float, float]:
    """The point of the box that is closest."""
    return min(max(at[0], box[0]), box[2]), min(max(at[1], box[1]), box[3])


def _leader(box: Box, at: tuple[float, float]) -> list[Box]:
    """Cut the line from a mark to its label into small boxes, without the mark's own surroundings."""
    end = nearest(box, at)
    many = int(math.dist(at, end) / 4)
    steps = ((at[0] + (end[0] - at[0]) * i / many, at[1] + (end[1] - at[1]) * i / many) for i in range(2, many))
    return [(x - 1, y - 1, x + 1, y + 1) for x, y in steps]


def place(at: Sequence[tuple[float, float]], widths: Sequence[float], inside: Box, bars: Sequence[Box]) -> list[Box]:
    """Find boxes for the labels of the marks `at`: in turn, the nearest free place, if possible with a free line to it.

    Marks and other labels are always avoided; `bars` (error bars) and places closer to another mark only where that
    costs no long way. Where nothing at all is free the box has no size and the label should not be drawn.
    """
    marks = [(x - 8, y - 6, x + 8, y + 6) for x, y in at]
    labels: list[Box] = []
    leaders: list[Box] = []  # the lines drawn so far, which later labels should not cover
    for k, (mark, width) in enumerate(zip(at, widths, strict=True)):
        others = [*at[:k], *at[k + 1 :]]
        tops = [mark[1] - LINE / 2, *range(int(inside[1]) + 1, int(inside[3] - LINE), 5)]
        lefts = [mark[0] + 9, mark[0] - 9 - width, *range(int(inside[0]) + 1, int(inside[2] - width), 6)]
        boxes = [(x, y, x + width, y + LINE) for x in lefts for y in tops if inside[0] <= x <= inside[2] - width]
        boxes = [b for b in boxes if inside[1] <= b[1] and b[3] <= inside[3]]
        away = {b: math.dist(nearest(b, mark), mark) for b in boxes}
        avoid = [*marks, *labels, *leaders]
        walls = [*labels, *marks[:k], *marks[k + 1 :]]
        free = (b for b in sorted(boxes, key=away.__getitem__) if not any(_hit(b, o) for o in avoid))
        near = list(itertools.islice(free, 400))
        good = [b for b in near if not any(_hit(step, w) for step in _leader(b, mark) for w in walls)]
        clear = (b for b in good if not any(_hit(b, o) for o in bars))
        own = (b for b in clear if all(math.dist(nearest(b, o), o) > away[b] + 3 for o in others))
        best = next(own, None)
        if best is None or away[best] > 60:
            best = next(iter(good or near), (*mark, *mark))
        labels.append(best)
        leaders += _leader(best, mark)
    return labels


def spread(wanted: Sequence[float], gap: float, hi: float) -> list[float]:
    """Move ascending positions so that neighbours are at least `gap` apart and none exceeds `hi`."""
    out = list(wanted)
    for i in range(1, len(out)):
        out[i] = max(out[i], out[i - 1] + gap)
    for i in reversed(range(len(out))):
        out[i] = min(out[i], out[i + 1] - gap if i + 1 < len(out) else hi)
    return out
