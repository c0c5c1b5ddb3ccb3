"""The forms of charts: each function makes a Vega-Lite specification (Altair) from plain rows.

A page draws it with :func:`ausam_lab.report.html.figure`, the documentation with :func:`ausam_lab.report.vega.png`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ausam_lab.report.vega import (
    FEW,
    INK,
    MANY,
    PAPER,
    SOFT,
    UNSEEN,
    Field,
    PlainRow,
    Spec,
    axis,
    chart_spec,
    isolated,
    plain_rows,
    style,
    tooltip,
)

SQUARE = 290  # width and height of a map of heat, which a telephone shows whole


@dataclass(frozen=True)
class Picture:
    """A chart of a page, with what is written about it."""

    name: str  # of its PNG file
    spec: Spec
    title: str = ""
    note: str = ""  # how to read it
    text: str = ""  # what it shows


def frontier(rows: Iterable[PlainRow], x: str, y: str, *, lower: bool = False) -> list[PlainRow]:
    """The rows that no other row beats in both (smaller x; larger y, or smaller if ``lower``), from left to right."""
    sign = -1 if lower else 1
    best: list[PlainRow] = []
    for row in sorted(rows, key=lambda row: (row[x], -sign * row[y])):
        if not best or sign * row[y] > sign * best[-1][y]:
            best.append(row)
    return best


def scatter(
    rows: Sequence[PlainRow],
    x: Field,
    y: Field,
    by: Field,
    hover: Sequence[Field],
    *,
    runs: Sequence[PlainRow] = (),
    hover_runs: Sequence[Field] = (),
    pareto: bool | Sequence[PlainRow] = True,
    lower: bool = False,
    names: Field | None = None,
    order: Sequence[str] = (),
) -> Spec:
    """A mark per row, with bars where the rows hold ``low_x``, ``high_x``, ``low_y`` and ``high_y``.

    Arguments:
        rows: one mark each; those with a true ``strong`` are larger and labelled. The label is above the mark, to its
            right, unless ``below`` or ``before`` is true.
        x: the horizontal figure.
        y: the vertical figure.
        by: the name; it has a colour, a shape and a legend entry that isolates it.
        hover: what the tooltip of a mark shows.
        runs: the values that the rows average: small marks behind them.
        hover_runs: what their tooltips show.
        pareto: adds the frontier of these rows as steps, or of all: smaller x and larger y is better.
        lower: smaller y is better.
        names: the labels; None: ``by``. If given, ``by`` is a kind, and every kind has its own shape.
        order: every name that may occur, so that each looks the same in all charts; none: those of the rows.
    """
    import altair as alt

    look, chosen = style(rows, by, shapes=1 if names else MANY, order=order), isolated(by)
    at = {"x": axis(alt.X, x), "y": axis(alt.Y, y)}
    colour, shape = look.colour, look.shape
    full = alt.condition(chosen, alt.value(1.0), alt.value(0.06))
    layers = []
    if on_it := rows if pareto is True else pareto or []:
        best = [{x.key: r[x.key], y.key: r[y.key]} for r in frontier(on_it, x.key, y.key, lower=lower)]
        best.append({x.key: max(r.get("high_x") or r[x.key] for r in rows), y.key: best[-1][y.key]})
        steps = alt.Chart(alt.InlineData(values=plain_rows(best)), name="frontier")
        layers.append(
            steps.mark_line(interpolate="step-after", stroke=SOFT, strokeDash=[4, 4], strokeWidth=1).encode(**at)
        )
    if runs:
        small = alt.Chart(alt.InlineData(values=plain_rows(runs)), name="runs").mark_point(
            filled=True, size=22, fillOpacity=0.5
        )
        layers.append(small.encode(**at, color=colour, shape=shape, opacity=full, tooltip=tooltip([by, *hover_runs])))
    if any("low_x" in r for r in rows):
        for name, ends in (("x", {"x": "low_x:Q", "x2": "high_x:Q"}), ("y", {"y": "low_y:Q", "y2": "high_y:Q"})):
            bars = alt.Chart(name=f"bars_{name}").mark_rule(strokeWidth=1.4, strokeOpacity=0.6)
            layers.append(bars.encode(**at | ends, color=look.colour, opacity=full))
    marks = alt.Chart(name="marks").mark_point(filled=True, stroke=PAPER, strokeWidth=1)
    size = alt.condition("datum.strong", alt.value(170), alt.value(90))
    layers.append(
        marks.encode(
            **at, color=colour, shape=shape, size=size, opacity=full, tooltip=tooltip([by, *hover])
        ).add_params(chosen)
    )
    for name, ink in (("halos", {"stroke": PAPER, "strokeWidth": 4}), ("names", {"fill": INK})):
        label = alt.Chart(name=name).transform_filter("datum.strong")
        label = label.mark_text(
            align=alt.expr("datum.before ? 'right' : 'left'"),
            dx=alt.expr("datum.before ? -9 : 9"),
            dy=alt.expr("datum.below ? 13 : -9"),
            fontWeight="bold",
            **ink,
        )
        layers.append(label.encode(**at, text=f"{(names or by).key}:N", opacity=full))
    return chart_spec(rows, layers, x, y, 360)


def cloud(
    rows: Sequence[PlainRow], x: Field, y: Field, by: Field, hover: Sequence[Field], *, order: Sequence[str] = ()
) -> Spec:
    """Many small points on a logarithmic axis, those with a true ``strong`` larger and on top.

    Arguments:
        rows: one point each; ``x`` is positive.
        x: the horizontal figure.
        y: the vertical figure, from zero.
        by: the name; it has a colour and a legend entry that isolates it.
        hover: what the tooltip of a point shows.
        order: every name that may occur; none: those of the rows.
    """
    import altair as alt

    look, chosen = style(rows, by, order=order), isolated(by)
    across = alt.X(f"{x.key}:Q", title=x.title, scale=alt.Scale(type="log"), axis=alt.Axis(tickCount=6, format="~g"))
    points = alt.Chart(name="points").mark_point(filled=True)
    layer = points.encode(
        x=across,
        y=axis(alt.Y, y, domainMin=0),
        color=look.colour,
        shape=look.shape,
        size=alt.condition("datum.strong", alt.value(70), alt.value(16)),
        opacity=alt.condition(chosen, alt.value(0.7), alt.value(0.03)),
        tooltip=tooltip(hover),
    )
    strong_last = sorted(rows, key=lambda row: bool(row.get("strong")))
    return chart_spec(strong_last, [layer.add_params(chosen)], x, y, 380)


def lines(
    rows: Sequence[PlainRow],
    x: Field,
    y: Field,
    by: Field,
    hover: Sequence[Field],
    *,
    x_range: tuple[float, float] | None = None,
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
        x_range: the ends of the axis; None: taken from the rows.
        y_from: where the axis begins; values below are cut off. None: at the smallest.
        y_to: where the axis ends; values above are cut off. None: at the largest.
        log: the logarithmic axes, "y" or "xy"; rows that are not positive are left out.
        order: every name that may occur, so that each looks the same in all charts; none: those of the rows.
    """
    import altair as alt

    rows = [row for row in rows if "y" not in log or row[y.key] > 0]
    look, chosen = style(rows, by, "stroke", order=order), isolated(by)
    top = max((r.get("high") or r[y.key] for r in rows), default=1.0)
    bottom = min((r.get("low", r[y.key]) for r in rows), default=0.0)
    limits: dict[str, Any] = {} if y_from is None or not y_from < top else {"domainMin": y_from}
    limits |= {} if y_to is None or not y_to > bottom else {"domainMax": y_to}
    log_x, log_y = ([row[field.key] for row in rows] if name in log else [] for name, field in (("x", x), ("y", y)))
    at = {"x": axis(alt.X, x, x_range, log_x), "y": axis(alt.Y, y, log=log_y, **limits)}
    full = alt.condition(chosen, alt.value(1.0), alt.value(0.06))
    clip = bool(limits) and (bottom < limits.get("domainMin", bottom) or top > limits.get("domainMax", top))
    layers = []
    if any("low" in r for r in rows):
        bands = alt.Chart(name="bands").mark_area(clip=clip, fillOpacity=0.16)
        if len(look.names) > FEW // 2:  # many overlapping bands show nothing
            bands = bands.transform_filter("datum.strong")
        ends = {"x": at["x"], "y": axis(alt.Y, Field("low", y.title, y.form), **limits), "y2": "high:Q"}
        layers.append(bands.encode(**ends, color=look.colour, opacity=full))
    width = alt.condition("datum.strong", alt.value(3), alt.value(1.8))
    strokes = alt.Chart(name="lines").mark_line(clip=clip)
    layers.append(
        strokes.encode(**at, color=look.colour, strokeDash=look.dash, strokeWidth=width, opacity=full).add_params(
            chosen
        )
    )
    few = len({r[x.key] for r in rows}) <= FEW
    dots = alt.Chart(name="dots" if few else UNSEEN).transform_filter(chosen)
    dots = dots.mark_point(filled=True, clip=clip, size=40 if few else 120, opacity=1 if few else 0)
    layers.append(dots.encode(**at, color=look.colour, tooltip=tooltip([by, *hover])))
    thick_last = sorted(rows, key=lambda r: bool(r.get("strong")))  # the last are drawn on top
    return chart_spec(thick_last, layers, x, y, 320)


def pairs(rows: Sequence[PlainRow], x: Field, by: Field, kind: Field, kinds: tuple[str, str]) -> Spec:
    """Two marks per name on a common axis from zero, joined by a line: a disc and a square.

    Arguments:
        rows: two per name, one of each kind.
        x: the figure.
        by: the name, one line of the chart.
        kind: which of the two kinds; it has a shade, a shape and a legend entry. Colours stand for names.
        kinds: the two, in legend order.
    """
    import altair as alt

    names, chosen = list(dict.fromkeys(r[by.key] for r in rows)), isolated(kind)
    scales: dict[str, Any] = {"domain": list(kinds)}
    label = alt.Legend(title=None)
    y = alt.Y(f"{by.key}:N", title=None, sort=names, axis=alt.Axis(labelLimit=110, grid=False))
    full = alt.condition(chosen, alt.value(1.0), alt.value(0.06))
    joined = alt.Chart(name="joined").mark_line(stroke=SOFT, strokeWidth=2)
    at = {"x": axis(alt.X, x, domainMin=0), "y": y}
    marks = alt.Chart(name="marks").mark_point(filled=True, size=110, stroke=PAPER, strokeWidth=1)
    marks = marks.encode(
        **at,
        color=alt.Color(f"{kind.key}:N", scale=alt.Scale(**scales, range=[SOFT, INK]), legend=label),
        shape=alt.Shape(f"{kind.key}:N", scale=alt.Scale(**scales, range=["circle", "square"]), legend=label),
        opacity=full,
        tooltip=tooltip([by, kind, x]),
    )
    layers = [joined.encode(**at, detail=f"{by.key}:N"), marks.add_params(chosen)]
    about = f"{x.title}: {kinds[0]} and {kinds[1]}"
    return chart_spec(rows, layers, x, Field(by.key, ""), 24 + 26 * max(1, len(names)), about)


def forest(
    rows: Sequence[PlainRow], x: Field, by: Field, kind: Field, hover: Sequence[Field], kinds: Sequence[str]
) -> Spec:
    """A mark with its interval per row, the names below each other, and a line at zero: a forest plot.

    Arguments:
        rows: each with the figure, ``low`` and ``high``.
        x: the figure.
        by: the name, one band of the chart.
        kind: what tells the marks of one name apart; it has a colour, a shape and a place in the band.
        hover: what the tooltip of a mark shows.
        kinds: all kinds, in legend order.
    """
    import altair as alt

    names, chosen = list(dict.fromkeys(row[by.key] for row in rows)), isolated(kind)
    look = style(rows, kind, shapes=1, order=kinds)
    full = alt.condition(chosen, alt.value(1.0), alt.value(0.06))
    # The longest names take two lines on a telephone, rather than half of the width.
    label = alt.Axis(labelLimit=150, grid=False, labelExpr="split(datum.label, ', ')")
    at = {
        "x": axis(alt.X, x),
        "y": alt.Y(f"{by.key}:N", title=None, sort=names, axis=label),
        "yOffset": alt.YOffset(f"{kind.key}:N", sort=list(kinds)),
    }
    zero = alt.Chart(alt.InlineData(values=[{x.key: 0.0}]), name="zero").mark_rule(stroke=SOFT, strokeDash=[4, 4])
    ends = at | {"x": axis(alt.X, Field("low", x.title, x.form)), "x2": "high:Q"}
    bars = alt.Chart(name="bars").mark_rule(strokeWidth=2).encode(**ends, color=look.colour, opacity=full)
    marks = alt.Chart(name="marks").mark_point(filled=True, size=90, stroke=PAPER, strokeWidth=1)
    marks = marks.encode(**at, color=look.colour, shape=look.shape, opacity=full, tooltip=tooltip([by, kind, *hover]))
    layers = [zero.encode(x=f"{x.key}:Q"), bars, marks.add_params(chosen)]
    return chart_spec(rows, layers, x, Field(by.key, ""), 40 + 48 * max(1, len(names)), x.title)


def diagonal(rows: Sequence[PlainRow], x: Field, y: Field) -> Spec:
    """A dot per row, and the dashed line on which both figures are equal."""
    import altair as alt

    top = max((max(row[x.key], row[y.key]) for row in rows), default=1.0)
    at = {"x": axis(alt.X, x), "y": axis(alt.Y, y)}
    ends = alt.Chart(alt.InlineData(values=[{x.key: end, y.key: end} for end in (0.0, top)]), name="diagonal")
    line = ends.mark_line(stroke=SOFT, strokeDash=[4, 4], strokeWidth=1).encode(**at)
    dots = alt.Chart(name="marks").mark_point(filled=True, size=22, opacity=0.55, fill="var(--c0)")
    return chart_spec(rows, [line, dots.encode(**at, tooltip=tooltip([x, y]))], x, y, 320)


def bars(rows: Sequence[PlainRow], x: Field, y: Field, *, rule: float | None = None) -> Spec:
    """A bar per row, in the order given.

    Arguments:
        rows: one bar each.
        x: the name of the bar.
        y: its height.
        rule: where a dashed line is drawn; None: nowhere.
    """
    import altair as alt

    names = [str(row[x.key]) for row in rows]
    angle = -40 if max(map(len, names), default=0) > 6 else 0
    column = alt.X(f"{x.key}:N", sort=names, title=x.title, axis=alt.Axis(labelAngle=angle))
    at = {"x": column, "y": axis(alt.Y, y, domainMin=0)}
    layers = [alt.Chart(name="bars").mark_bar(fill="var(--c0)").encode(**at, tooltip=tooltip([x, y]))]
    if rule is not None:
        dashed = alt.Chart(alt.InlineData(values=[{y.key: rule}]), name="rule").mark_rule(
            stroke=SOFT, strokeDash=[4, 4]
        )
        layers.append(dashed.encode(y=f"{y.key}:Q"))
    return chart_spec(rows, layers, x, y, 260)


def strip(rows: Sequence[PlainRow], x: Field, by: Field, hover: Sequence[Field], *, order: Sequence[str] = ()) -> Spec:
    """A dot per row on a logarithmic axis, the names below each other: to compare runs.

    Arguments:
        rows: one dot each; those that are not positive are left out.
        x: the figure.
        by: the name, one line of the chart, in the colour that it has in other charts.
        hover: what the tooltip of a dot shows.
        order: every name that may occur; none: those of the rows.
    """
    import altair as alt

    rows = [row for row in rows if row[x.key] > 0]
    look = style(rows, by, order=order)
    names = list(dict.fromkeys(row[by.key] for row in rows))
    across = alt.X(f"{x.key}:Q", title=x.title, scale=alt.Scale(type="log", nice=True))
    down = alt.Y(f"{by.key}:N", title=None, sort=names, axis=alt.Axis(labelLimit=110, grid=False))
    colour = alt.Color(f"{by.key}:N", scale=look.scale, legend=None)
    dots = alt.Chart(name="marks").mark_point(filled=True, size=90, opacity=0.8)
    layers = [dots.encode(x=across, y=down, color=colour, tooltip=tooltip([by, *hover]))]
    return chart_spec(rows, layers, x, Field(by.key, ""), 24 + 26 * max(1, len(names)), x.title)


def heat(rows: Sequence[PlainRow], x: Field, y: Field, value: Field) -> Spec:
    """A square per row, coloured by its value; logarithmic if all values are positive."""
    import altair as alt

    def side(channel: Any, field: Field, **how: Any) -> Any:
        ticks = alt.Axis(format=".2~f", labelOverlap=True, labelAngle=0, grid=False)
        return channel(f"{field.key}:O", title=field.title, axis=ticks, **how)

    scale = alt.Scale(type="log", scheme="viridis") if min(row[value.key] for row in rows) > 0 else alt.Scale()
    colour = alt.Color(f"{value.key}:Q", title=value.title, scale=scale, legend=alt.Legend(gradientLength=200))
    at = {"x": side(alt.X, x), "y": side(alt.Y, y, sort="descending")}
    squares = alt.Chart(name="squares").mark_rect().encode(**at, color=colour, tooltip=tooltip([x, y, value]))
    about = f"{value.title} against {x.title} and {y.title}"
    return chart_spec(rows, [squares], x, Field("", ""), SQUARE, about) | {"width": SQUARE}
