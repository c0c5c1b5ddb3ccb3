"""The three forms of charts: lines, dots, heat. Each makes a Vega-Lite specification from plain rows.

A page draws it with :func:`ausam_lab.report.html.chart`. Colours are CSS variables of the page (``var(--c0)``), so a
chart follows the light or dark theme without being drawn twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Spec = dict[str, Any]
PlainRow = Mapping[str, Any]  # a row of figures and words, as in JSON

PAPER, INK, SOFT, RULE = (f"var(--{name})" for name in ("paper", "ink", "soft", "rule"))
COLOURS = tuple(f"var(--c{i})" for i in range(8))  # of names
FEW = 16  # a line with up to this many points has a tick at each; up to half as many lines show bands
SQUARE = 290  # width and height of a heat map, which a phone shows whole
ENTRY = 200  # the width of a legend entry; ``0 * width`` recounts the columns when the window changes
TITLE = {"titleColor": SOFT, "titleFontSize": 12, "titleFontWeight": "normal"}
CONFIG: Spec = {
    "font": "system-ui, -apple-system, Segoe UI, Roboto, Liberation Sans, sans-serif",
    "axis": {"labelColor": SOFT, "labelFontSize": 12, "labelSeparation": 6}
    | {"gridColor": RULE, "domainColor": RULE, "tickColor": RULE}
    | TITLE,
    "legend": {"orient": "bottom", "labelColor": INK, "labelFontSize": 12, "symbolSize": 90, "symbolStrokeWidth": 2}
    | {"columns": {"expr": f"max(1, floor((0 * width + containerSize()[0]) / {ENTRY}))"}, "labelLimit": 320}
    | TITLE,
    "view": {"stroke": RULE},
}
TWO_LINES = (  # a long name, which would take half of a phone: "SGD (half the epochs) · 0.5x"
    "length(datum.label) < 24 ? datum.label : split(datum.label, indexof(datum.label, ' · ') < 0 ? ', ' : ' · ')"
)


@dataclass(frozen=True)
class Field:
    """A column of the rows: its key, title and number format (d3's, "": as it is)."""

    key: str
    title: str
    form: str = ""


def lines(
    rows: Sequence[PlainRow],
    x: Field,
    y: Field,
    by: Field,
    hover: Sequence[Field],
    *,
    low: float | None = None,
    log: bool = False,
) -> Spec:
    """A line per name, with a band where the rows hold ``low`` and ``high``.

    Arguments:
        rows: the points of the lines.
        x: the horizontal figure.
        y: the vertical figure.
        by: the name of the line. It has a colour and a legend entry that isolates it.
        hover: what the tooltip of a point shows.
        low: where the vertical axis begins. What lies below is cut off.
        log: logarithmic axes. Rows that are not positive are left out.
    """
    rows = [row for row in rows if not log or min(row[x.key], row[y.key]) > 0]
    places = sorted({row[x.key] for row in rows})
    few = len(places) <= FEW
    at = {
        "x": _axis("x", x, log=log, at=places if few else ()),
        "y": _axis("y", y, log=log, low=low),
        "color": _colours(rows, by),
    }
    look = at | {"opacity": {"condition": {"param": "isolated", "value": 1.0}, "value": 0.06}}
    clip = {"clip": low is not None}
    points = {"type": "point", "filled": True, "size": 40 if few else 8, **clip}
    layers = [
        _layer("lines", {"type": "line", **clip}, look),
        _layer("dots", points, at | {"tooltip": _tooltip([by, *hover])}, transform=[{"filter": {"param": "isolated"}}]),
    ]
    if any("low" in row for row in rows) and len(_names(rows, by)) <= FEW // 2:  # many bands show nothing
        ends = look | {"y": at["y"] | {"field": "low"}, "y2": {"field": "high"}}
        layers.insert(0, _layer("bands", {"type": "area", "fillOpacity": 0.16, **clip}, ends))
    # A click on the legend, which belongs to the first layer, isolates a name; another click adds one.
    select = {"type": "point", "fields": [by.key], "toggle": "true"}
    layers[0]["params"] = [{"name": "isolated", "select": select, "bind": "legend"}]
    above = {"text": y.title, "anchor": "start", "frame": "group", "fontSize": 12, "fontWeight": "normal"}
    return _chart(rows, layers, 320, f"{y.title} against {x.title}") | {"title": above | {"color": SOFT}}


def dots(
    rows: Sequence[PlainRow],
    x: Field,
    by: Field,
    hover: Sequence[Field],
    *,
    small: Sequence[PlainRow] = (),
    rules: Sequence[tuple[float, str]] = (),
) -> Spec:
    """A mark per row, the names below each other. With its interval where the rows hold ``low`` and ``high``.

    Arguments:
        rows: one mark each.
        x: the figure.
        by: the name: one line of the chart, in the order of the rows.
        hover: what the tooltip of a mark shows.
        small: the values that the rows average: small marks behind them.
        rules: dashed vertical lines: where, and what is written above.
    """
    names = _names(rows, by)
    names_axis = {"labelExpr": TWO_LINES, "labelLimit": 210, "labelColor": INK}
    at: Spec = {
        "x": _axis("x", x),
        "y": {"field": by.key, "type": "nominal", "title": None, "sort": names}
        | {"axis": names_axis | {"grid": False, "ticks": False, "domain": False}},
        "color": _colours(rows, by) | {"legend": None},
    }
    shown = at | {"tooltip": _tooltip([by, *hover])}
    # The names of the rules stand to the left of their lines, each on a line of its own.
    marked = _data([{x.key: value, "text": text, "dy": -5 - 13 * i} for i, (value, text) in enumerate(sorted(rules))])
    dashed = {"type": "rule", "stroke": SOFT, "strokeDash": [4, 4], "strokeWidth": 1}
    words = {"type": "text", "fill": SOFT, "align": "right", "baseline": "bottom", "fontSize": 11, "dx": -4}
    words |= {"dy": {"expr": "datum.dy"}}
    layers = [
        _layer("rules", dashed, {"x": at["x"]}, data=marked),
        _layer("names", words, {"x": at["x"], "y": {"value": 0}, "text": {"field": "text"}}, data=marked),
    ]
    if any("low" in row for row in rows):
        ends = at | {"x": at["x"] | {"field": "low"}, "x2": {"field": "high"}}
        layers.append(_layer("bars", {"type": "rule", "strokeWidth": 2}, ends))
    tiny = {"type": "point", "filled": True, "size": 22, "fillOpacity": 0.5}
    discs = {"type": "point", "filled": True, "size": 100, "stroke": PAPER, "strokeWidth": 1}
    layers += [_layer("small", tiny, shown, data=_data(small)), _layer("marks", discs, shown)]
    return _chart(rows, layers, 24 + 28 * max(1, len(names)), x.title)


def heat(rows: Sequence[PlainRow], x: Field, y: Field, value: Field) -> Spec:
    """A square per row, at the figures x and y, coloured by its value: on a logarithmic scale if they differ widely."""

    def side(field: Field, **how: Any) -> Spec:
        ticks = {"format": field.form, "labelOverlap": True, "labelAngle": 0, "grid": False}
        return {"field": field.key, "type": "ordinal", "title": field.title, "axis": ticks, **how}

    values = [row[value.key] for row in rows]
    scale = {"scheme": "viridis"} | ({"type": "log"} if 0 < 4 * min(values) <= max(values) else {})
    colour = {"field": value.key, "type": "quantitative", "title": value.title, "scale": scale}
    shown = {"x": side(x), "y": side(y, sort="descending"), "color": colour | {"legend": {"gradientLength": 200}}}
    layers = [_layer("squares", {"type": "rect"}, shown | {"tooltip": _tooltip([x, y, value])})]
    about = f"{value.title} against {x.title} and {y.title}"
    return _chart(rows, layers, SQUARE, about) | {"width": SQUARE, "autosize": "pad"}


def _names(rows: Iterable[PlainRow], by: Field) -> list[str]:
    """The names in the rows, each once, in their order."""
    return list(dict.fromkeys(row[by.key] for row in rows))


def _colours(rows: Sequence[PlainRow], by: Field) -> Spec:
    """The channel that tells names apart, in the order of the rows. Beyond eight names, colours repeat."""
    names = _names(rows, by)
    scale = {"domain": names, "range": [COLOURS[i % len(COLOURS)] for i in range(len(names))]}
    legend = {"title": None, "symbolType": "stroke"} if len(names) > 1 else None
    return {"field": by.key, "type": "nominal", "scale": scale, "legend": legend}


def _axis(
    name: Literal["x", "y"],
    field: Field,
    *,
    log: bool = False,
    at: Sequence[float] = (),
    low: float | None = None,
) -> Spec:
    """An axis of figures, with ticks at these places or where Vega puts them. A vertical one's title is above."""
    scale: Spec = {"type": "log", "nice": False, "padding": 12} if log else {"zero": False, "nice": True}
    scale |= {} if low is None else {"domainMin": low}
    ticks: Spec = {"values": list(at)} if at else {"tickCount": 5}
    if log or field.form == "d":
        ticks["format"] = "~g" if log else "d"
    title = field.title if name == "x" else None
    return {"field": field.key, "type": "quantitative", "title": title, "scale": scale, "axis": ticks}


def _tooltip(fields: Sequence[Field]) -> list[Spec]:
    """What pointing at a mark shows, a line per field."""
    kinds = [{"type": "quantitative", "format": f.form} if f.form else {"type": "nominal"} for f in fields]
    return [{"field": f.key, "title": f.title} | kind for f, kind in zip(fields, kinds, strict=True)]


def _data(rows: Sequence[PlainRow]) -> Spec:
    """Rows as inline data, rounded to six digits: enough for a picture, and a page has many."""
    return {"values": [{k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in r.items()} for r in rows]}


def _layer(name: str, mark: Spec, encoding: Spec, **parts: Any) -> Spec:
    return {"name": name, "mark": mark, "encoding": encoding, **parts}


def _chart(rows: Sequence[PlainRow], layers: Sequence[Spec], height: int, description: str) -> Spec:
    """The specification of a chart as wide as its container. The description is for screen readers."""
    return {
        "data": _data(rows),
        "layer": list(layers),
        "width": "container",
        "height": height,
        "description": description,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": "transparent",
        "config": CONFIG,
    }
