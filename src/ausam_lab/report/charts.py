"""The three forms of charts: lines, dots, heat. Each makes a Vega-Lite specification from plain rows.

A page draws it with :func:`ausam_lab.report.html.figure`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ausam_lab.report.vega import (
    CONFIG,
    INK,
    NOMINAL,
    PAPER,
    SELECTED,
    SOFT,
    Field,
    PlainRow,
    Spec,
    axis,
    chart,
    colours,
    data,
    heading,
    isolating,
    layer,
    names_of,
    tooltip,
)

FEW = 16  # a line with up to this many points shows dots; up to half as many lines show bands
SQUARE = 290  # width and height of a heat map, which a phone shows whole
TWO_LINES = (  # a long name, which would take half of a phone: "SGD (half the epochs) · 0.5x"
    "length(datum.label) < 24 ? datum.label : split(datum.label, indexof(datum.label, ' · ') < 0 ? ', ' : ' · ')"
)
DASHED = {"stroke": SOFT, "strokeDash": [4, 4], "strokeWidth": 1}


@dataclass(frozen=True)
class Picture:
    """A chart of a page, with what is written about it."""

    name: str
    spec: Spec
    title: str = ""
    note: str = ""  # how to read it


def lines(
    rows: Sequence[PlainRow],
    x: Field,
    y: Field,
    by: Field,
    hover: Sequence[Field],
    *,
    limits: Mapping[str, float] | None = None,
    log: str = "",
) -> Spec:
    """A line per name, with a band where the rows hold ``low`` and ``high``.

    Arguments:
        rows: the points of the lines; a line with a true ``strong`` is thicker.
        x: the horizontal figure.
        y: the vertical figure.
        by: the name of the line; it has a colour and a legend entry that isolates it.
        hover: what the tooltip of a point shows.
        limits: ``domainMin`` or ``domainMax`` of the vertical axis; what lies beyond is cut off.
        log: the logarithmic axes, "x" or "xy"; rows that are not positive are left out.
    """
    keys = [field.key for name, field in (("x", x), ("y", y)) if name in log]
    rows = [row for row in rows if all(row[k] > 0 for k in keys)]
    colour = colours(rows, by)
    places = sorted({row[x.key] for row in rows})
    few = len(places) <= FEW  # of many points, invisible ones catch the pointer
    at = {"x": axis("x", x, log="x" in log, at=places if few else ()), "y": axis("y", y, log="y" in log, limits=limits)}
    clip, look = {"clip": bool(limits)}, {"color": colour, "opacity": SELECTED}
    width = {"condition": {"test": "datum.strong", "value": 3}, "value": 1.8}
    strokes = layer("lines", {"type": "line", **clip}, at | look | {"strokeWidth": width})
    seen = {"size": 40, "opacity": 1} if few else {"size": 120, "opacity": 0}
    points = {"type": "point", "filled": True, **seen, **clip}
    shown = at | {"color": colour, "tooltip": tooltip([by, *hover])}
    layers = [strokes, layer("dots", points, shown, transform=[{"filter": {"param": "isolated"}}])]
    if any("low" in row for row in rows) and len(names_of(rows, by)) <= FEW // 2:  # many bands show nothing
        ends = at | {"y": at["y"] | {"field": "low"}, "y2": {"field": "high"}}
        layers.insert(0, layer("bands", {"type": "area", "fillOpacity": 0.16, **clip}, ends | look))
    layers[0]["params"] = isolating(by)  # the legend belongs to the first coloured layer
    return chart(rows, layers, 320, title=y.title, description=f"{y.title} against {x.title}")


def dots(
    rows: Sequence[PlainRow],
    x: Field,
    by: Field,
    hover: Sequence[Field],
    *,
    small: Sequence[PlainRow] = (),
    rules: Sequence[tuple[float, str]] = (),
    title: str = "",
    subtitle: str = "",
) -> Spec:
    """A mark per row, the names below each other; with its interval where the rows hold ``low`` and ``high``.

    Arguments:
        rows: one mark each.
        x: the figure.
        by: the name: one line of the chart, in the order of the rows.
        hover: what the tooltip of a mark shows.
        small: the values that the rows average: small marks behind them.
        rules: dashed vertical lines: where, and what is written above.
        title: what the picture shows, in it.
        subtitle: a sentence under the title.
    """
    names = names_of(rows, by)
    plain = {"grid": False, "ticks": False, "domain": False}
    axis_of_names = {"labelExpr": TWO_LINES, "labelLimit": 210, "labelColor": INK, **plain}
    at: Spec = {
        "x": axis("x", x),
        "y": {"field": by.key, **NOMINAL, "title": None, "sort": names, "axis": axis_of_names},
        "color": colours(rows, by) | {"legend": None},
    }
    layers = []
    for i, (value, text) in enumerate(sorted(rules)):  # the last one's name stands to the right of its line
        place, mark = {"x": at["x"]}, data([{x.key: value, "text": text}])
        layers.append(layer(f"rule {text}", {"type": "rule", **DASHED}, place, data=mark))
        side = {"align": "left" if i == len(rules) - 1 else "right", "dx": 4 if i == len(rules) - 1 else -4}
        words = {"type": "text", "fill": SOFT, "dy": -5, "baseline": "bottom", "fontSize": 11, **side}
        written = place | {"y": {"value": 0}, "text": {"field": "text", **NOMINAL}}
        layers.append(layer(f"name {text}", words, written, data=mark))
    if any("low" in row for row in rows):
        ends = at | {"x": at["x"] | {"field": "low"}, "x2": {"field": "high"}}
        layers.append(layer("bars", {"type": "rule", "strokeWidth": 2}, ends))
    shown = at | {"tooltip": tooltip([by, *hover])}
    if small:
        tiny = {"type": "point", "filled": True, "size": 22, "fillOpacity": 0.5}
        layers.append(layer("small", tiny, shown, data=data(small)))
    discs = {"type": "point", "filled": True, "size": 100, "stroke": PAPER, "strokeWidth": 1}
    layers.append(layer("marks", discs, shown))
    spec = chart(rows, layers, 24 + 28 * max(1, len(names)), description=x.title)
    return spec | ({"title": heading(title, subtitle)} if title else {})


def heat(rows: Sequence[PlainRow], x: Field, y: Field, value: Field, *, log: bool = False, text: bool = False) -> Spec:
    """A square per row, coloured by its value.

    Arguments:
        rows: one square each.
        x: the horizontal setting.
        y: the vertical setting.
        value: what the colour shows.
        log: on a logarithmic scale, if all values are positive.
        text: write the value into its square, instead of a legend.
    """

    def side(field: Field, **how: Any) -> Spec:
        ticks = {"format": field.form, "labelOverlap": True, "labelAngle": 0, "grid": False}
        return {"field": field.key, "type": "ordinal", "title": field.title, "axis": ticks, **how}

    values = [row[value.key] for row in rows]
    scale = {"scheme": "viridis"} | ({"type": "log"} if log and min(values) > 0 else {})
    legend = None if text else {"gradientLength": 200}
    colour = {"field": value.key, "type": "quantitative", "title": value.title, "scale": scale, "legend": legend}
    at = {"x": side(x), "y": side(y, sort="descending")}
    shown = at | {"color": colour, "tooltip": tooltip([x, y, value])}
    layers = [layer("squares", {"type": "rect"}, shown)]
    if text:
        middle = (min(values) + max(values)) / 2
        ink = {"condition": {"test": f"datum['{value.key}'] < {middle}", "value": "#fff"}, "value": "#000"}
        written = at | {"text": {"field": value.key, "type": "quantitative", "format": value.form}, "color": ink}
        layers.append(layer("values", {"type": "text"}, written))
    about = f"{value.title} against {x.title} and {y.title}"
    return chart(rows, layers, SQUARE, description=about) | {"width": SQUARE, "autosize": "pad", "config": CONFIG}
