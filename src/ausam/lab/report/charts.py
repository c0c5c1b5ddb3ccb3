"""Inline SVG charts of the report: pure functions from numbers to a string, coloured by the page's CSS variables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ausam.lab.report.chart_text import FONT, LINE, Box, esc, fit, nearest, place, spread, text_width

BOLD = 1.08  # how much wider bold text may be
DASHES = ("none", "7 3", "2 3", "9 3 2 3")  # after eight colours these tell lines apart


@dataclass(frozen=True)
class Point:
    """One mark of a scatter: position, half-lengths of the error bars (None: no bar), label, colour slot, tooltip."""

    x: float
    y: float
    label: str
    dx: float | None = None
    dy: float | None = None
    slot: int = 0
    strong: bool = False
    note: str = ""


@dataclass(frozen=True)
class Line:
    """One line of a chart: values, the band around them (empty: none), label, colour slot, a tooltip for each dot."""

    xs: Sequence[float]
    ys: Sequence[float]
    label: str
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    slot: int = 0
    strong: bool = False
    notes: Sequence[str] = ()


def nice_step(lo: float, hi: float, count: int = 5) -> float:
    """Smallest of 1, 2, 2.5, 5 times a power of ten that cuts [lo, hi] into at most `count` pieces."""
    raw = (hi - lo) / max(1, count)
    if not (math.isfinite(raw) and raw > 0):
        raise ValueError(f"An axis needs finite lo < hi, got {lo} and {hi}: widen the range with domain() first.")
    power = 10.0 ** math.floor(math.log10(raw))
    return next((m * power for m in (1, 2, 2.5, 5) if m * power >= raw * (1 - 1e-9)), 10 * power)


def ticks(lo: float, hi: float, count: int = 5) -> list[float]:
    """Round values inside [lo, hi], evenly spaced, at most `count` + 1 of them."""
    step = nice_step(lo, hi, count)
    return [i * step for i in range(math.ceil(lo / step - 1e-9), math.floor(hi / step + 1e-9) + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Write the ticks, all with the same and the fewest decimals that tell them exactly."""
    if not values:
        return []
    gap = min((b - a for a, b in itertools.pairwise(values)), default=abs(values[0]) or 1.0)
    digits = next((d for d in range(7) if all(abs(round(v, d) - v) < 1e-6 * gap for v in values)), None)
    return [f"{v:g}" if digits is None else f"{v + 0.0:.{digits}f}" for v in values]


def domain(values: Iterable[float], count: int = 5) -> tuple[float, float]:
    """Widen the range of `values` to round ends; it is never empty."""
    found = list(values) or [0.0, 1.0]
    lo, hi = min(found), max(found)
    if hi - lo <= 1e-9 * max(abs(lo), abs(hi)):  # all equal: show a little around them
        pad = 0.05 * abs(lo) or 0.5
        lo, hi = lo - pad, hi + pad
    step = nice_step(lo, hi, count)
    return math.floor(lo / step + 1e-9) * step, math.ceil(hi / step - 1e-9) * step


def colour(slot: int) -> str:
    """CSS colour of a slot; the page defines --c0 to --c7 for light and dark."""
    return f"var(--c{slot % 8},#0072b2)"


@dataclass(frozen=True)
class Frame:
    """The plotting area inside a drawing and the two linear scales."""

    box: Box
    xs: tuple[float, float]
    ys: tuple[float, float]

    def x(self, value: float) -> float:
        """Place a value on the horizontal scale."""
        return self.box[0] + (value - self.xs[0]) / (self.xs[1] - self.xs[0]) * (self.box[2] - self.box[0])

    def y(self, value: float) -> float:
        """Place a value on the vertical scale."""
        return self.box[3] - (value - self.ys[0]) / (self.ys[1] - self.ys[0]) * (self.box[3] - self.box[1])

    def axes(self, x_label: str, y_label: str) -> str:
        """Grid lines, tick labels and what the axes mean (the y label lies above, where it needs no rotation)."""
        left, top, right, bottom = self.box
        out = [f'<rect class="frame" x="{left}" y="{top}" width="{right - left:.1f}" height="{bottom - top:.1f}"/>']
        marks = ticks(*self.xs, max(3, int((right - left) / 60)))
        for v, text in zip(marks, tick_labels(marks), strict=True):
            out.append(f'<line class="grid" x1="{self.x(v):.1f}" x2="{self.x(v):.1f}" y1="{top}" y2="{bottom}"/>')
            out.append(_text(self.x(v), bottom + 18, text, "middle"))
        marks = ticks(*self.ys, max(2, int((bottom - top) / 45))) if y_label else []
        for v, text in zip(marks, tick_labels(marks), strict=True):
            out.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{self.y(v):.1f}" y2="{self.y(v):.1f}"/>')
            out.append(_text(left - 6, self.y(v) + 4, text, "end"))
        end = max(right, text_width(x_label))  # a label longer than the axis may go on to the right
        return "".join(out) + _text(left, top - 10, y_label) + _text(end, bottom + 37, x_label, "end")


def _text(x: float, y: float, text: str, anchor: str = "start", css: str = "t") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{esc(text)}</text>' if text else ""


def _svg(width: float, height: float, name: str, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="100%" role="img" aria-label="{esc(name)}" '
        f'font-size="{FONT}" style="display:block;width:100%;height:auto">{body}</svg>'
    )


def frontier(points: Iterable[Point]) -> list[Point]:
    """Keep the points that no other point beats in both (less x, more y), from left to right."""
    best: list[Point] = []
    for p in sorted(points, key=lambda p: (p.x, -p.y)):
        if not best or p.y > best[-1].y:
            best.append(p)
    return best


def scatter(points: Sequence[Point], x_label: str, y_label: str, width: float = 680, pareto: bool = True) -> str:
    """Draw marks with error bars and direct labels; `pareto` adds the frontier (less x, more y is better) as steps."""
    points = sorted(points, key=lambda p: not p.strong)  # these choose the places of their labels first
    height = (400 if width > 500 else 340) + (5 if width > 500 else 11) * max(0, len(points) - 8)
    xs = domain([p.x + s * (p.dx or 0) for p in points for s in (-1, 1)], 8)
    ys = domain([p.y + s * (p.dy or 0) for p in points for s in (-1, 1)], 8)
    f = Frame((44, 28, width - 14, height - 46), xs, ys)
    out, bars = [f.axes(x_label, y_label)], []
    if pareto and points:
        first, *rest = frontier(points)
        path = "".join(f"H{f.x(p.x):.1f}V{f.y(p.y):.1f}" for p in rest)
        out.append(f'<path class="front" d="M{f.x(first.x):.1f} {f.y(first.y):.1f}{path}H{f.box[2]:.1f}"/>')
    for p in points:
        x, y, w, h = f.x(p.x), f.y(p.y), f.x(xs[0] + (p.dx or 0)) - f.x(xs[0]), f.y(ys[0]) - f.y(ys[0] + (p.dy or 0))
        bars += [(x - w, y - 2, x + w, y + 2), (x - 2, y - h, x + 2, y + h)]
        d = f"M{x - w:.1f} {y:.1f}H{x + w:.1f}M{x:.1f} {y - h:.1f}V{y + h:.1f}"
        out.append(f'<path class="bar" d="{d}" style="stroke:{colour(p.slot)}"/>')
    names = [fit(p.label, 0.4 * width) for p in points]
    inside = (f.box[0] + 3, f.box[1] + 2, f.box[2] - 3, f.box[3] - 2)
    at = [(f.x(p.x), f.y(p.y)) for p in points]
    boxes = place(at, [text_width(n) * BOLD for n in names], inside, bars)
    texts = []
    for p, name, mark, box in zip(points, names, at, boxes, strict=True):
        end = nearest(box, mark)
        if math.dist(end, mark) > 11:
            out.append(f'<path class="leader" d="M{mark[0]:.1f} {mark[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"/>')
        fill = colour(p.slot) if p.slot < 8 else "var(--paper,#fff)"  # hollow tells the second eight from the first
        texts.append(_mark(*mark, p.note or p.label, f"fill:{fill};stroke:{colour(p.slot)};stroke-width:2"))
        if box[2] > box[0]:
            texts.append(_text(box[0] + 1, box[1] + 12.5, name, css="halo strong" if p.strong else "halo"))
    return _svg(width, height, f"{y_label} against {x_label}", "".join(out + texts))


def _mark(x: float, y: float, note: str, style: str, size: float = 5, square: bool = False) -> str:
    shape = f'rect x="{x - size:.1f}" y="{y - size:.1f}" width="{2 * size}" height="{2 * size}"'
    shape = shape if square else f'circle cx="{x:.1f}" cy="{y:.1f}" r="{size}"'
    return f'<{shape} style="{style}"><title>{esc(note)}</title></{shape.split()[0]}>'


def lines(
    series: Sequence[Line],
    x_label: str,
    y_label: str,
    width: float = 680,
    x_range: tuple[float, float] | None = None,
    y_from: float | None = None,
) -> str:
    """Draw lines with bands, labelled at their right ends; what lies below `y_from` (None: the least) is cut off."""
    series = [s for s in series if s.xs]
    height = max(360 if width > 500 else 320, 90 + LINE * len(series))
    values = [v for s in series for v in (*s.ys, *s.low, *s.high) if y_from is None or v >= y_from]
    ys = domain([*values, *([] if y_from is None else [y_from])], 8)
    xs = x_range or (min((s.xs[0] for s in series), default=0.0), max((s.xs[-1] for s in series), default=1.0))
    xs = xs if xs[1] > xs[0] else (xs[0] - 0.5, xs[1] + 0.5)
    names = [fit(s.label, 0.27 * width) for s in series]
    left, top, bottom = 44.0, 28.0, height - 46
    right = width - 36 - max((text_width(n) * BOLD for n in names), default=0)
    f = Frame((left, top, right, bottom), xs, ys)
    inner, outer = [], []
    for s in series:
        points, edge = _path(f, s.xs, s.ys), _path(f, [*s.xs, *reversed(s.xs)], [*s.high, *reversed(s.low)])
        ink = f"stroke:{colour(s.slot)};stroke-dasharray:{DASHES[s.slot // 8 % 4]}"
        if s.low and (s.strong or len(series) <= 8):  # many bands on top of each other show nothing
            inner.append(f'<polygon class="band" points="{edge}" style="fill:{colour(s.slot)}"/>')
        tip = f"<title>{esc(s.label)}: {s.ys[-1]:.2f} at the end</title>"
        css = "line strong" if s.strong else "line"
        inner.append(f'<polyline class="{css}" points="{points}" style="{ink}">{tip}</polyline>')
        x, y = f.x(s.xs[-1]), f.y(s.ys[-1])
        inner.append(f'<path class="rest" d="M{x:.1f} {y:.1f}H{right:.1f}" style="stroke:{colour(s.slot)}"/>')
        for a, b, note in zip(s.xs, s.ys, s.notes, strict=False):
            inner.append(_mark(f.x(a), f.y(b), note, f"fill:{colour(s.slot)}", 3.5))
    ends = sorted((min(max(f.y(s.ys[-1]), top + 6), bottom), i) for i, s in enumerate(series))
    for (y, i), at in zip(ends, spread([y for y, _ in ends], LINE, bottom), strict=True):
        ink, dash = f"stroke:{colour(series[i].slot)}", DASHES[series[i].slot // 8 % 4]
        outer.append(f'<path class="leader" d="M{right:.1f} {y:.1f}L{right + 14:.1f} {at:.1f}" style="{ink}"/>')
        d = f"M{right + 14:.1f} {at:.1f}h15"
        outer.append(f'<path class="line strong" d="{d}" style="{ink};stroke-dasharray:{dash}"/>')
        outer.append(_text(right + 32, at + 4, names[i], css="strong" if series[i].strong else "t"))
    # a nested drawing clips what falls below the axis, and needs no id as a clipPath would
    x, y, w, h = left - 4, top - 4, right - left + 8, bottom - top + 4 + (4 if y_from == 0 else 0)
    clip = f'<svg x="{x}" y="{y}" width="{w:.1f}" height="{h:.1f}" viewBox="{x} {y} {w:.1f} {h:.1f}">'
    body = [f.axes(x_label, y_label), clip, *inner, "</svg>", *outer]
    return _svg(width, height, f"{y_label} against {x_label}", "".join(body))


def _path(f: Frame, xs: Sequence[float], ys: Sequence[float]) -> str:
    return " ".join(f"{f.x(x):.1f},{f.y(y):.1f}" for x, y in zip(xs, ys, strict=False))


def pairs(rows: Sequence[tuple[str, float, float]], x_label: str, kinds: tuple[str, str], width: float = 680) -> str:
    """Draw two values a name on a common axis from zero: a round mark for the first kind, a square for the second."""
    height, names = 80 + 28 * len(rows), [fit(name, 0.3 * width) for name, _, _ in rows]
    left = 8 + max((text_width(n) for n in names), default=0)
    f = Frame((left, 28, width - 34, height - 46), (0, domain([0, *(v for r in rows for v in r[1:])], 8)[1]), (0, 1))
    styles, second = [f"fill:{colour(k)};stroke:var(--paper,#fff)" for k in (0, 1)], 54 + text_width(kinds[0])
    out = [f.axes(x_label, ""), _mark(8, 11, kinds[0], styles[0]), _text(20, 15, kinds[0])]
    out += [_mark(second, 11, kinds[1], styles[1], square=True), _text(second + 12, 15, kinds[1])]
    for i, (name, a, b) in enumerate(rows):
        y, lo, hi = f.box[1] + 28 * i + 15, f.x(min(a, b)), f.x(max(a, b))
        out.append(_text(left - 6, y + 4, names[i], "end") + f'<path class="pair" d="M{lo:.1f} {y}H{hi:.1f}"/>')
        out.append(_mark(f.x(b), y, f"{name}: {kinds[1]} {b:.1f}", styles[1], 6, square=True))
        out.append(_mark(f.x(a), y, f"{name}: {kinds[0]} {a:.1f}", styles[0]))
        out.append(_text(lo - 9, y + 4, f"{min(a, b):.1f}", "end", "halo"))
        out.append(_text(hi + 9, y + 4, f"{max(a, b):.1f}", css="halo"))
    return _svg(width, height, f"{x_label}: {kinds[0]} and {kinds[1]}", "".join(out))
