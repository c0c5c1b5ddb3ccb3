"""The five forms of charts: scatter, lines, dots, bars, heat. Each makes a Vega-Lite specification from plain rows.

A page draws it with :func:`ausam_lab.report.html.figure`, the documentation with :func:`ausam_lab.report.vega.png`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ausam_lab.report.vega import (
    COLOURS,
    INK,
    NOMINAL,
    PAPER,
    SELECTED,
    SHADES,
    SOFT,
    Field,
    PlainRow,
    Spec,
    axis,
    chart,
    data,
    heading,
    isolating,
    layer,
    name_channels,
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

    name: str  # of its PNG file
    spec: Spec
    title: str = ""
    note: str = ""  # how to read it


def scatter(
    rows: Sequence[PlainRow],
    x: Field,
    y: Field,
    by: Field,
    hover: Sequence[Field],
    *,
    log: str = "",
    order: Sequence[str] = (),
) -> Spec:
    """A mark per row; those with a true ``strong`` are larger and on top.

    Arguments:
        rows: one mark each.
        x: the horizontal figure.
        y: the vertical figure.
        by: the name; it has a colour and a legend entry that isolates it.
        hover: what the tooltip of a mark shows.
        log: "x" for a logarithmic axis, whose values are positive.
        order: every name that may occur, so that each looks the same in all charts; none: those of the rows.
    """
    look = name_channels(rows, by, order)
    at = {"x": axis("x", x, log="x" in log), "y": axis("y", y)}
    marks = {"type": "point", "filled": True, "stroke": PAPER, "strokeWidth": 0.5}
    size = {"condition": {"test": "datum.strong", "value": 110}, "value": 40 if len(rows) < 100 else 16}
    encoding = at | {"color": look["color"], "shape": look["shape"], "size": size, "opacity": SELECTED}
    layers = [layer("marks", marks, encoding | {"tooltip": tooltip(hover)}, params=isolating(by))]
    strong_last = sorted(rows, key=lambda row: bool(row.get("strong")))
    return chart(strong_last, layers, 360, title=y.title, description=_against(x, y), entry=_longest(rows, by))


def lines(
    rows: Sequence[PlainRow],
    x: Field,
    y: Field,
    by: Field,
    hover: Sequence[Field],
    *,
    y_from: float | None = None,
    y_to: float | None = None,
    log: str = "",
    order: Sequence[str] = (),
) -> Spec:
    """A line per name, with a band where the rows hold ``low`` and ``high``.

    Arguments:
        rows: the points of the lines; a line with a true ``strong`` is thicker.
        x: the horizontal figure.
        y: the vertical figure.
        by: the name of the line; it has a colour, a dash and a legend entry that isolates it.
        hover: what the tooltip of a point shows.
        y_from: where the axis begins; values below are cut off. None: at the smallest.
        y_to: where the axis ends; values above are cut off. None: at the largest.
        log: the logarithmic axes, "y" or "xy"; rows that are not positive are left out.
        order: every name that may occur, so that each looks the same in all charts; none: those of the rows.
    """
    rows = sorted((row for row in rows if "y" not in log or row[y.key] > 0), key=lambda row: bool(row.get("strong")))
    look = name_channels(rows, by, order, symbol="stroke")
    limits = {} if y_from is None else {"domainMin": y_from}
    limits |= {} if y_to is None else {"domainMax": y_to}
    at = {"x": axis("x", x, log="x" in log), "y": axis("y", y, log="y" in log, **limits)}
    clip, colour = {"clip": bool(limits)}, {"color": look["color"], "opacity": SELECTED}
    width = {"condition": {"test": "datum.strong", "value": 3}, "value": 1.8}
    strokes = layer("lines", {"type": "line", **clip}, at | colour | {"strokeDash": look["strokeDash"]})
    strokes["encoding"]["strokeWidth"] = width
    few = len({row[x.key] for row in rows}) <= FEW  # of many points, invisible ones catch the pointer
    seen = {"size": 40, "opacity": 1} if few else {"size": 120, "opacity": 0}
    points = {"type": "point", "filled": True, **seen, **clip}
    shown = at | {"color": look["color"], "tooltip": tooltip([by, *hover])}
    layers = [strokes, layer("dots", points, shown, transform=[{"filter": {"param": "isolated"}}])]
    if any("low" in row for row in rows) and len(names_of(rows, by)) <= FEW // 2:  # many bands show nothing
        ends = at | {"y": at["y"] | {"field": "low"}, "y2": {"field": "high"}}
        layers.insert(0, layer("bands", {"type": "area", "fillOpacity": 0.16, **clip}, ends | colour))
    layers[0]["params"] = isolating(by)  # the legend belongs to the first coloured layer
    return chart(rows, layers, 320, title=y.title, description=_against(x, y), entry=_longest(rows, by))


def dots(
    rows: Sequence[PlainRow],
    x: Field,
    by: Field,
    hover: Sequence[Field],
    *,
    kind: Field | None = None,
    small: Sequence[PlainRow] = (),
    rules: Sequence[tuple[float, str]] = (),
    log: bool = False,
    zero: bool = False,
    order: Sequence[str] = (),
    title: str = "",
    subtitle: str = "",
) -> Spec:
    """A mark per row, the names below each other; with its interval where the rows hold ``low`` and ``high``.

    Arguments:
        rows: one mark each.
        x: the figure.
        by: the name: one line of the chart, in the order of the rows.
        hover: what the tooltip of a mark shows.
        kind: what tells the marks of one name apart; it has a shade and a legend entry. None: names have colours.
        small: the values that the rows average: small marks behind them.
        rules: dashed vertical lines: where, and what is written above.
        log: whether the axis is logarithmic; rows that are not positive are left out.
        zero: whether the axis begins at zero.
        order: every name or kind that may occur, in the order of colours; none: those of the rows.
        title: what the picture shows, in it.
        subtitle: a sentence under the title.
    """
    rows = [row for row in rows if not log or row[x.key] > 0]
    names, colour = names_of(rows, by), kind or by
    look = name_channels(rows, colour, order, colours=SHADES if kind else COLOURS)
    if kind is None:
        look = {channel: how | {"legend": None} for channel, how in look.items()}
    axis_of_names = {
        "labelExpr": TWO_LINES,
        "labelLimit": 210,
        "labelColor": INK,
        "grid": False,
        "ticks": False,
        "domain": False,
    }
    at: Spec = {
        "x": axis("x", x, log=log, **({"domainMin": 0} if zero else {})),
        "y": {"field": by.key, **NOMINAL, "title": None, "sort": names, "axis": axis_of_names},
        "color": look["color"],
        "opacity": SELECTED if kind else {"value": 1},
    }
    if kind is not None:
        at["yOffset"] = {"field": kind.key, **NOMINAL, "sort": list(order) or names_of(rows, kind)}
    layers = []
    if rules:
        marks = data([{x.key: value, "text": text} for value, text in rules])
        place = {"x": at["x"]}
        layers.append(layer("rules", {"type": "rule", **DASHED}, place, data=marks))
        text = {"type": "text", "fill": SOFT, "dy": -5, "baseline": "bottom", "fontSize": 11}
        written = place | {"y": {"value": 0}, "text": {"field": "text", **NOMINAL}}
        layers.append(layer("rule_names", text, written, data=marks))
    if any("low" in row for row in rows):
        ends = at | {"x": at["x"] | {"field": "low"}, "x2": {"field": "high"}}
        layers.append(layer("bars", {"type": "rule", "strokeWidth": 2}, ends))
    if small:
        tiny = {"type": "point", "filled": True, "size": 22, "fillOpacity": 0.5}
        layers.append(layer("small", tiny, at | {"tooltip": tooltip([by, *hover])}, data=data(small)))
    discs = {"type": "point", "filled": True, "size": 100, "stroke": PAPER, "strokeWidth": 1}
    layers.append(layer("marks", discs, at | {"shape": look["shape"], "tooltip": tooltip([by, *hover])}))
    if kind is not None:
        next(one for one in layers if "color" in one["encoding"])["params"] = isolating(kind)
    high = 24 + (44 if kind else 28) * max(1, len(names))
    spec = chart(rows, layers, high, description=x.title, entry=_longest(rows, kind) if kind else 0)
    return spec | ({"title": heading(title, subtitle)} if title else {})


def bars(rows: Sequence[PlainRow], x: Field, y: Field, *, rule: float | None = None) -> Spec:
    """A bar per row, in the order given.

    Arguments:
        rows: one bar each.
        x: the name of the bar.
        y: its height.
        rule: where a dashed line is drawn; None: nowhere.
    """
    names = [str(row[x.key]) for row in rows]
    angle = {"labelAngle": -40 if max(map(len, names), default=0) > 6 else 0}
    at = {
        "x": {"field": x.key, **NOMINAL, "sort": names, "title": x.title, "axis": angle},
        "y": axis("y", y, domainMin=0),
    }
    layers = [layer("bars", {"type": "bar", "fill": "var(--c0)"}, at | {"tooltip": tooltip([x, y])})]
    if rule is not None:
        layers.append(layer("rule", {"type": "rule", **DASHED}, {"y": at["y"]}, data=data([{y.key: rule}])))
    return chart(rows, layers, 260, title=y.title, description=_against(x, y))


def heat(rows: Sequence[PlainRow], x: Field, y: Field, value: Field, *, log: bool) -> Spec:
    """A square per row, coloured by its value; with ``log`` on a logarithmic scale if all values are positive."""

    def side(field: Field, **how: Any) -> Spec:
        ticks = {"format": ".2~f", "labelOverlap": True, "labelAngle": 0, "grid": False}
        return {"field": field.key, "type": "ordinal", "title": field.title, "axis": ticks, **how}

    scale = {"scheme": "viridis"}
    if log and min(row[value.key] for row in rows) > 0:
        scale["type"] = "log"
    legend = {"gradientLength": 200}
    colour = {"field": value.key, "type": "quantitative", "title": value.title, "scale": scale, "legend": legend}
    at = {"x": side(x), "y": side(y, sort="descending"), "color": colour, "tooltip": tooltip([x, y, value])}
    about = f"{value.title} against {x.title} and {y.title}"
    return chart(rows, [layer("squares", {"type": "rect"}, at)], SQUARE, description=about) | {"width": SQUARE}


def _against(x: Field, y: Field) -> str:
    return f"{y.title} against {x.title}"


def _longest(rows: Sequence[PlainRow], by: Field) -> int:
    return max(map(len, names_of(rows, by)), default=0)
