"""Charts of a diagnosis: Altair specifications drawn as inline SVG, whose colours are CSS variables of the page."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ausam.lab.report.vega import INK, MANY, RULE, SOFT, vega_lite

if TYPE_CHECKING:
    from markupsafe import Markup

Rows = Sequence[dict[str, Any]]
Spec = Callable[[int], dict[str, Any]]  # called with the width in pixels

COLOURS = tuple(f"var(--c{i})" for i in range(MANY))
WIDE, NARROW = 640, 330


def lines(
    rows: Rows,
    x: str,
    y: str,
    series: str,
    *,
    log: str = "",
    zero: bool = False,
    part: bool = False,
    dots: bool = True,
) -> Spec:
    """One line per series; fields double as axis titles.

    ``log`` names the logarithmic axes: "y" or "xy". A logarithmic x axis has a tick at every value of the rows.
    ``part``: the y axis runs from 0 to 1.
    """

    def spec(width: int) -> dict[str, Any]:
        alt = _altair()

        drawn = [row for row in rows if row[y] is not None and not ("y" in log and row[y] <= 0)]
        order = list(dict.fromkeys(str(row[series]) for row in rows))
        chart = alt.Chart(alt.Data(values=drawn)).mark_line(point={"size": 28} if dots else False, strokeWidth=2)
        scale = alt.Scale(domain=[0, 1]) if part else alt.Scale(type="log") if "y" in log else alt.Scale(zero=zero)
        at = _x(x, width, sorted({row[x] for row in drawn}) if "x" in log else None)
        return _finished(chart.encode(x=at, y=_y(y, scale), color=_colour(series, order, width)), width)

    return spec


def scatter(rows: Rows, x: str, y: str, series: str) -> Spec:
    """One dot per row, with the diagonal on which both values are equal."""

    def spec(width: int) -> dict[str, Any]:
        alt = _altair()

        order = list(dict.fromkeys(str(row[series]) for row in rows))
        top = max((max(row[x], row[y]) for row in rows), default=1.0)
        dots = alt.Chart(alt.Data(values=list(rows))).mark_circle(size=22, opacity=0.55)
        ends = alt.Data(values=[{x: 0.0, y: 0.0}, {x: top, y: top}])
        diagonal = alt.Chart(ends).mark_line(strokeDash=[4, 4], color=SOFT, strokeWidth=1)
        both = {"x": _x(x, width), "y": _y(y, alt.Scale())}
        whole = diagonal.encode(**both) + dots.encode(**both, color=_colour(series, order, width))
        return _finished(whole, width)

    return spec


def bars(rows: Rows, x: str, y: str, rule: bool = True) -> Spec:
    """One bar per row, in the order given; ``rule`` adds a line at 1."""

    def spec(width: int) -> dict[str, Any]:
        alt = _altair()

        order = [str(row[x]) for row in rows]
        axis = alt.Axis(labelAngle=-40 if max(map(len, order)) > 6 else 0)
        chart = alt.Chart(alt.Data(values=list(rows))).mark_bar(color=COLOURS[0])
        column = alt.X(f"{x}:N", sort=order, title=x, axis=axis)
        drawn = chart.encode(x=column, y=_y(y, alt.Scale()))
        one = alt.Chart(alt.Data(values=[{y: 1}])).mark_rule(color=SOFT, strokeDash=[4, 4]).encode(y=f"{y}:Q")
        return _finished(drawn + one if rule else drawn, width)

    return spec


def ticks(rows: Rows, x: str, y: str) -> Spec:
    """Dots on a logarithmic scale, one line per name, to compare runs."""

    def spec(width: int) -> dict[str, Any]:
        alt = _altair()

        order = list(dict.fromkeys(str(row[y]) for row in rows))
        chart = alt.Chart(alt.Data(values=[row for row in rows if row[x] > 0])).mark_circle(size=90, opacity=0.8)
        encoded = chart.encode(
            x=alt.X(f"{x}:Q", scale=alt.Scale(type="log", nice=True), title=x),
            y=alt.Y(f"{y}:N", sort=order, title=None),
            color=alt.Color(f"{y}:N", sort=order, scale=alt.Scale(domain=order, range=_range(order)), legend=None),
        )
        return _finished(encoded, width, height=40 + 26 * len(order))

    return spec


def heat(rows: Rows, x: str, y: str, value: str) -> Spec:
    """One square per row, coloured by the logarithm of its value."""

    def spec(width: int) -> dict[str, Any]:
        alt = _altair()

        def axis(name: str) -> dict[str, Any]:
            return {"title": name, "axis": alt.Axis(format=".2~f", labelOverlap=True, labelAngle=0)}

        side = min(360, width - 120)
        scheme = alt.Scale(type="log", scheme="viridis") if min(r[value] for r in rows) > 0 else alt.Scale()
        encoded = (
            alt.Chart(alt.Data(values=list(rows)))
            .mark_rect()
            .encode(
                x=alt.X(f"{x}:O", **axis(x)),
                y=alt.Y(f"{y}:O", sort="descending", **axis(y)),
                color=alt.Color(f"{value}:Q", title=value, scale=scheme),
            )
        )
        return _finished(encoded, side, height=side, exact=True)

    return spec


@dataclass(frozen=True)
class Picture:
    """A chart for wide and narrow screens, with a title and a note."""

    name: str
    note: str
    wide: Markup
    narrow: Markup


def picture(name: str, spec: Spec, note: str = "") -> Picture:
    """Draw a specification at both widths."""
    return Picture(name, note, *(_svg(spec(width), name) for width in (WIDE, NARROW)))


def _altair() -> Any:
    import altair  # imported late because it takes a second

    return altair


def _x(name: str, width: int, values: Sequence[float] | None = None) -> Any:
    """The horizontal axis: linear, or logarithmic with ticks at ``values``."""
    alt = _altair()

    if values is not None:
        scale = alt.Scale(type="log", nice=False)
        return alt.X(f"{name}:Q", title=name, scale=scale, axis=alt.Axis(values=list(values), format="~g"))
    whole = {"tickMinStep": 1} if name == "epoch" else {}
    return alt.X(f"{name}:Q", title=name, axis=alt.Axis(tickCount=width // 60, labelOverlap=True, **whole))


def _y(name: str, scale: Any) -> Any:
    alt = _altair()

    # placed above the axis, so that it need not be rotated
    title = {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleX": 0, "titleY": -12}
    return alt.Y(f"{name}:Q", title=name, scale=scale, axis=alt.Axis(tickCount=6, **title))


def _colour(series: str, order: list[str], width: int) -> Any:
    alt = _altair()

    legend = alt.Legend(orient="bottom", title=None, columns=2 if width > 500 else 1, labelLimit=300)
    legend = legend if len(order) > 1 else None  # a single line is explained by the caption
    return alt.Color(f"{series}:N", sort=order, scale=alt.Scale(domain=order, range=_range(order)), legend=legend)


def _range(order: list[str]) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(len(order))]


def _finished(chart: Any, width: int, height: int | None = None, exact: bool = False) -> dict[str, Any]:
    """Add the size and the style of the page."""
    tall = height or (280 if width > 500 else 230)
    fit = {} if exact else {"autosize": {"type": "fit-x", "contains": "padding"}}
    text = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    lines = {"gridColor": RULE, "domainColor": RULE, "tickColor": RULE, "labelColor": SOFT, "titleColor": SOFT}
    sized = chart.properties(
        width=width,
        height=tall,
        background="transparent",
        padding={"top": 18, "right": 10, "bottom": 6, "left": 2},
        **fit,
    )
    found: dict[str, Any] = (
        sized.configure(font="sans-serif")
        .configure_axis(**text, **lines)
        .configure_legend(labelFontSize=12, titleFontSize=12, titleFontWeight="normal", labelColor=INK, titleColor=SOFT)
        .configure_view(stroke=RULE)
        .to_dict()
    )
    return found


def _svg(spec: dict[str, Any], name: str) -> Markup:
    """The SVG with unique ids and no more width than it needs."""
    import vl_convert
    from markupsafe import Markup, escape

    drawn = vl_convert.vegalite_to_svg(spec, vl_version=vega_lite())
    mine = hashlib.sha256(drawn.encode()).hexdigest()[:8]
    drawn = re.sub(r'\b(id="|url\(#|xlink:href="#|href="#)', rf"\g<1>d{mine}-", drawn)
    drawn = re.sub(r' xmlns(:xlink)?="[^"]*"', "", drawn, count=2)
    width = re.search(r'width="([\d.]+)"', drawn)
    limit = width[1] if width else WIDE
    head = (
        f'<svg role="img" aria-label="{escape(name)}" style="display:block;max-width:{limit}px;width:100%;height:auto"'
    )
    return Markup(re.sub(r'<svg([^>]*?) width="[^"]*" height="[^"]*"', rf"{head}\1", drawn, count=1))  # noqa: S704
