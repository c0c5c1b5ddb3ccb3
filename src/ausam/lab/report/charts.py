"""Charts from plain rows: each function makes a Vega-Lite specification (Altair), used by the pages and the docs.

Colours are CSS variables of the page (``var(--c0)``), so a chart follows the light or dark theme without being drawn
twice; :func:`png` replaces them by the colours of one theme.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ausam.lab.report.text import clean

Spec = dict[str, Any]
PlainRow = Mapping[str, Any]  # a row of figures and words, as in JSON

WIDTH = 640  # of a chart outside a page
# The width of a legend entry: its symbol and gaps, a letter, and the least and the most of the whole.
SYMBOL, LETTER, NARROW, WIDE = 25, 6.2, 130, 320
THEMES = {  # the CSS variables of a page
    "light": {"--paper": "#fff", "--ink": "#1b1f24", "--soft": "#59626d", "--rule": "#d5dae0", "--wash": "#f3f6f9"}
    | {"--c0": "#0072b2", "--c1": "#d55e00", "--c2": "#00805d", "--c3": "#b8538f"}
    | {"--c4": "#8a6d00", "--c5": "#6a4fc0", "--c6": "#2b98d4", "--c7": "#5a6068"},
    "dark": {"--paper": "#14181d", "--ink": "#e8ecf1", "--soft": "#a3adb8", "--rule": "#38414b", "--wash": "#1d232a"}
    | {"--c0": "#4db2f0", "--c1": "#ff8b4a", "--c2": "#3fd0a2", "--c3": "#f29ccc"}
    | {"--c4": "#e8c547", "--c5": "#b3a1ff", "--c6": "#9fdcff", "--c7": "#b4bcc6"},
}
PAPER, INK, SOFT, RULE = (f"var(--{name})" for name in ("paper", "ink", "soft", "rule"))
MANY = 8  # colours; beyond that, dashes and shapes tell the names apart
DASHES = ([1, 0], [7, 3], [2, 3], [9, 3, 2, 3])
SHAPES = ("circle", "square", "triangle-up", "diamond")
FEW = 16  # a line with up to this many points shows dots; up to half as many lines show bands
UNSEEN = "unseen"  # the name of an invisible layer that only catches the pointer


@dataclass(frozen=True)
class Field:
    """A column of the rows: its key, title and number format (d3's; "": as it is)."""

    key: str
    title: str
    form: str = ""


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
    kinds: Sequence[str] = (),
) -> Spec:
    """A mark per row, with bars where the rows hold ``low_x``, ``high_x``, ``low_y`` and ``high_y``.

    Args:
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
        kinds: every kind that may occur, so that each looks the same in all charts.
    """
    import altair as alt

    style, chosen = _style(rows, by, shapes=1 if names else MANY, every=kinds), _isolated(by)
    at = {"x": _axis(alt.X, x), "y": _axis(alt.Y, y)}
    colour, shape = style.colour, style.shape
    full = alt.condition(chosen, alt.value(1.0), alt.value(0.06))
    every = alt.Chart()
    layers = []
    if on_it := rows if pareto is True else pareto or []:
        best = [{x.key: r[x.key], y.key: r[y.key]} for r in frontier(on_it, x.key, y.key, lower=lower)]
        best.append({x.key: max(r.get("high_x") or r[x.key] for r in rows), y.key: best[-1][y.key]})
        steps = alt.Chart(alt.InlineData(values=_plain(best)), name="frontier")
        layers.append(
            steps.mark_line(interpolate="step-after", stroke=SOFT, strokeDash=[4, 4], strokeWidth=1).encode(**at)
        )
    if runs:
        small = alt.Chart(alt.InlineData(values=_plain(runs)), name="runs").mark_point(
            filled=True, size=22, fillOpacity=0.5
        )
        layers.append(small.encode(**at, color=colour, shape=shape, opacity=full, tooltip=_tooltip(by, hover_runs)))
    if any("low_x" in r for r in rows):
        for name, ends in (("x", {"x": "low_x:Q", "x2": "high_x:Q"}), ("y", {"y": "low_y:Q", "y2": "high_y:Q"})):
            bars = every.properties(name=f"bars_{name}").mark_rule(strokeWidth=1.4, strokeOpacity=0.6)
            layers.append(bars.encode(**at | ends, color=style.colour, opacity=full))
    marks = every.properties(name="marks").mark_point(filled=True, stroke=PAPER, strokeWidth=1)
    size = alt.condition("datum.strong", alt.value(170), alt.value(90))
    layers.append(
        marks.encode(**at, color=colour, shape=shape, size=size, opacity=full, tooltip=_tooltip(by, hover)).add_params(
            chosen
        )
    )
    labels = every.properties(name="names").transform_filter("datum.strong")
    label = labels.mark_text(
        align=alt.expr("datum.before ? 'right' : 'left'"),
        dx=alt.expr("datum.before ? -9 : 9"),
        dy=alt.expr("datum.below ? 13 : -9"),
        fontWeight="bold",
        fill=INK,
    )
    layers.append(label.encode(**at, text=f"{(names or by).key}:N", opacity=full))
    return _spec(rows, layers, x, y, 360)


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
) -> Spec:
    """A line per name, with a band where the rows hold ``low`` and ``high``.

    Args:
        rows: the points of the lines; a line with a true ``strong`` is thicker.
        x: the horizontal figure.
        y: the vertical figure.
        by: the name of the line; it has a colour, a dash and a legend entry that isolates it.
        hover: what the tooltip of a point shows.
        x_range: the ends of the axis; None: taken from the rows.
        y_from: where the axis begins; values below are cut off. None: at the smallest.
        y_to: where the axis ends; values above are cut off. None: at the largest.
    """
    import altair as alt

    style, chosen = _style(rows, by, "stroke"), _isolated(by)
    top = max((r.get("high") or r[y.key] for r in rows), default=1.0)
    bottom = min((r.get("low", r[y.key]) for r in rows), default=0.0)
    limits: dict[str, Any] = {} if y_from is None or not y_from < top else {"domainMin": y_from}
    limits |= {} if y_to is None or not y_to > bottom else {"domainMax": y_to}
    at = {"x": _axis(alt.X, x, x_range), "y": _axis(alt.Y, y, **limits)}
    full = alt.condition(chosen, alt.value(1.0), alt.value(0.06))
    clip = bool(limits) and (bottom < limits.get("domainMin", bottom) or top > limits.get("domainMax", top))
    every = alt.Chart()
    layers = []
    if any("low" in r for r in rows):
        bands = every.properties(name="bands").mark_area(clip=clip, fillOpacity=0.16)
        if len(style.names) > FEW // 2:  # many overlapping bands show nothing
            bands = bands.transform_filter("datum.strong")
        ends = {"x": at["x"], "y": _axis(alt.Y, Field("low", y.title, y.form), **limits), "y2": "high:Q"}
        layers.append(bands.encode(**ends, color=style.colour, opacity=full))
    width = alt.condition("datum.strong", alt.value(3), alt.value(1.8))
    strokes = every.properties(name="lines").mark_line(clip=clip)
    layers.append(
        strokes.encode(**at, color=style.colour, strokeDash=style.dash, strokeWidth=width, opacity=full).add_params(
            chosen
        )
    )
    few = len({r[x.key] for r in rows}) <= FEW
    dots = every.properties(name="dots" if few else UNSEEN).transform_filter(chosen)
    dots = dots.mark_point(filled=True, clip=clip, size=40 if few else 120, opacity=1 if few else 0)
    layers.append(dots.encode(**at, color=style.colour, tooltip=_tooltip(by, hover)))
    thick_last = sorted(rows, key=lambda r: bool(r.get("strong")))  # the last are drawn on top
    return _spec(thick_last, layers, x, y, 320)


def pairs(rows: Sequence[PlainRow], x: Field, by: Field, kind: Field, kinds: tuple[str, str]) -> Spec:
    """Two marks per name on a common axis from zero, joined by a line: a disc and a square.

    Args:
        rows: two per name, one of each kind.
        x: the figure.
        by: the name, one line of the chart.
        kind: which of the two kinds; it has a colour, a shape and a legend entry.
        kinds: the two, in legend order.
    """
    import altair as alt

    names, chosen = list(dict.fromkeys(r[by.key] for r in rows)), _isolated(kind)
    scales: dict[str, Any] = {"domain": list(kinds)}
    label = alt.Legend(title=None)
    y = alt.Y(f"{by.key}:N", title=None, sort=names, axis=alt.Axis(labelLimit=110, grid=False))
    every = alt.Chart()
    full = alt.condition(chosen, alt.value(1.0), alt.value(0.06))
    joined = every.properties(name="joined").mark_line(stroke=SOFT, strokeWidth=2)
    at = {"x": _axis(alt.X, x, domainMin=0), "y": y}
    marks = every.properties(name="marks").mark_point(filled=True, size=110, stroke=PAPER, strokeWidth=1)
    marks = marks.encode(
        **at,
        color=alt.Color(f"{kind.key}:N", scale=alt.Scale(**scales, range=["var(--c0)", "var(--c1)"]), legend=label),
        shape=alt.Shape(f"{kind.key}:N", scale=alt.Scale(**scales, range=["circle", "square"]), legend=label),
        opacity=full,
        tooltip=_tooltip(by, [kind, x]),
    )
    layers = [joined.encode(**at, detail=f"{by.key}:N"), marks.add_params(chosen)]
    about = f"{x.title}: {kinds[0]} and {kinds[1]}"
    return _spec(rows, layers, x, Field(by.key, ""), 24 + 26 * max(1, len(names)), about)


# -- what the charts share ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Style:
    names: list[str]
    colour: Any
    shape: Any
    dash: Any


def _style(
    rows: Sequence[PlainRow], by: Field, symbol: str | None = None, shapes: int = MANY, every: Sequence[str] = ()
) -> _Style:
    """Colours in the order of ``every`` name or of the rows, and dashes or shapes for more than eight of them."""
    import altair as alt

    found = list(dict.fromkeys(r[by.key] for r in rows))
    names = list(every) or found
    scale = alt.Scale(domain=names, range=[f"var(--c{i % MANY})" for i in range(len(names))])
    forms = alt.Scale(domain=names, range=[SHAPES[i // shapes % len(SHAPES)] for i in range(len(names))])
    dashes = alt.Scale(domain=names, range=[DASHES[i // MANY % len(DASHES)] for i in range(len(names))])
    shown = [name for name in names if name in found] if every else alt.Undefined
    field, legend = f"{by.key}:N", alt.Legend(title=None, symbolType=symbol or alt.Undefined, values=shown)
    return _Style(
        names,
        alt.Color(field, scale=scale, legend=legend),
        alt.Shape(field, scale=forms, legend=legend),
        alt.StrokeDash(field, scale=dashes, legend=legend),
    )


def _isolated(by: Field) -> Any:
    """A click on the legend isolates a name, a click on another adds it, and a second click removes it."""
    import altair as alt

    return alt.selection_point(name="isolated", fields=[by.key], bind="legend", toggle="true")


def _axis(channel: Any, field: Field, ends: tuple[float, float] | None = None, **limits: Any) -> Any:
    import altair as alt

    scale = alt.Scale(domain=list(ends), nice=False) if ends else alt.Scale(zero=False, nice=True, **limits)
    name, side, apart = ("x", "width", 60) if channel is alt.X else ("y", "height", 45)
    many = f"{side} / {apart}"
    if field.form == "d":  # no ticks between whole numbers
        many = f"min({many}, span(domain('{name}')))"
    axis = alt.Axis(tickCount=alt.ExprRef(f"max(1, ceil({many}))"), format="d" if field.form == "d" else alt.Undefined)
    return channel(f"{field.key}:Q", title=field.title if channel is alt.X else None, scale=scale, axis=axis)


def _tooltip(by: Field, fields: Sequence[Field]) -> list[Any]:
    import altair as alt

    return [alt.Tooltip(f"{f.key}:{'Q' if f.form else 'N'}", title=f.title, format=f.form) for f in (by, *fields)]


def _plain(rows: Sequence[PlainRow]) -> list[dict[str, Any]]:
    """Rows as JSON, rounded to six digits: enough for a picture, and a page has many."""
    return [{k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items()} for row in rows]


def _clean(value: Any) -> Any:
    """Without control characters: they are illegal in SVG, and one of them crashes vl-convert and Python with it."""
    if isinstance(value, dict):
        return {key: _clean(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_clean(part) for part in value]
    return clean(value) if isinstance(value, str) else value


def _spec(
    rows: Sequence[PlainRow], layers: Sequence[Any], x: Field, y: Field, height: int, description: str = ""
) -> Spec:
    import altair as alt

    title = alt.TitleParams(y.title, anchor="start", frame="group", fontSize=12, fontWeight="normal", color=SOFT)
    chart = alt.layer(*layers, data=alt.InlineData(values=_plain(rows))).properties(
        width=WIDTH,
        height=height,
        description=description or f"{y.title} against {x.title}",
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        background="transparent",
    )
    chart = chart.properties(title=title) if y.title else chart
    chart = (
        chart.configure(font="system-ui, -apple-system, Segoe UI, Roboto, Liberation Sans, sans-serif")
        .configure_axis(
            labelColor=SOFT,
            titleColor=SOFT,
            titleFontWeight="normal",
            titleFontSize=12,
            labelFontSize=12,
            gridColor=RULE,
            domainColor=RULE,
            tickColor=RULE,
        )
        .configure_legend(
            orient="bottom",
            labelColor=INK,
            labelFontSize=12,
            symbolSize=90,
            symbolStrokeWidth=2,
        )
        .configure_view(stroke=RULE)
    )
    spec: Spec = _clean(chart.to_dict())
    # the legend belongs to the first coloured layer, and only a selection in that layer makes it clickable
    coloured = next(layer for layer in spec["layer"] if "color" in layer["encoding"])
    spec["params"][0]["views"] = [coloured["name"]]
    longest = max(map(len, coloured["encoding"]["color"]["scale"]["domain"]), default=0)
    entry = round(min(max(NARROW, SYMBOL + LETTER * longest), WIDE))
    spec["config"]["legend"] |= {"columns": WIDTH // entry, "labelLimit": entry - SYMBOL}
    del spec["$schema"]  # an address, which a page that fetches nothing does not need
    return spec


# -- pictures ----------------------------------------------------------------------------------------------------------


def vega_lite() -> str:
    """Altair's version of Vega-Lite, in vl-convert's notation."""
    import altair as alt

    return alt.SCHEMA_VERSION.lstrip("v").rpartition(".")[0]


def live(spec: Spec) -> Spec:
    """The same chart, as wide as its container, which also decides the number of legend columns.

    The columns depend on the container's width, because the width of the axes depends on the legend; ``0 * width``
    triggers a new count when the window changes.
    """
    entry = spec["config"]["legend"]["labelLimit"] + SYMBOL
    columns = {"expr": f"max(1, floor((0 * width + containerSize()[0]) / {entry}))"}
    legend = {**spec["config"]["legend"], "columns": columns}
    return {**spec, "width": "container", "config": {**spec["config"], "legend": legend}}


def svg(spec: Spec, prefix: str = "") -> str:
    """The chart as a drawing, with the page's variables for colours.

    Args:
        spec: the chart.
        prefix: for the names inside the drawing, which must be unique in a page.
    """
    drawing = _svg(json.dumps({**spec, "layer": [part for part in spec["layer"] if part.get("name") != UNSEEN]}))
    drawing = re.sub(r'(?<=\bid=")(?=clip)|(?<=url\(#)(?=clip)', prefix, drawing)
    return re.sub(r'(?<= d=")[^"]*', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), drawing)  # tenths are enough


@functools.lru_cache(maxsize=64)  # a comparison rewrites its page after every seed
def _svg(text: str) -> str:
    import vl_convert

    return str(vl_convert.vegalite_to_svg(text, vl_version=vega_lite()))


def png(spec: Spec, theme: Literal["light", "dark"] = "light", scale: float = 2.0) -> bytes:
    """The chart as a picture for the docs.

    Args:
        spec: the chart.
        theme: the colour theme, with its background.
        scale: pixels per unit; the chart is 640 units wide.
    """
    import vl_convert

    colours = THEMES[theme]
    text = re.sub(r"var\((--\w+)\)", lambda found: colours[found[1]], json.dumps({**spec, "background": PAPER}))
    return bytes(vl_convert.vegalite_to_png(text, vl_version=vega_lite(), scale=scale))
