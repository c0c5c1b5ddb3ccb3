"""What all charts share: axes, colours and legends, and drawing a specification as SVG and PNG.

Colours are CSS variables of the page (``var(--c0)``), so a chart follows the light or dark theme without being drawn
twice; :func:`png` replaces them by the colours of one theme.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ausam_lab.report.text import clean

Spec = dict[str, Any]
PlainRow = Mapping[str, Any]  # a row of figures and words, as in JSON

WIDTH = 640  # of a chart outside a page
# The width of a legend entry: its symbol and gaps, a letter, and the least and the most of the whole.
SYMBOL, LETTER, NARROW, WIDE = 25, 7.0, 130, 320
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
CONFIG = {  # Vega-Lite's, of every chart
    "font": "system-ui, -apple-system, Segoe UI, Roboto, Liberation Sans, sans-serif",
    "axis": {"labelColor": SOFT, "labelFontSize": 12, "gridColor": RULE, "domainColor": RULE, "tickColor": RULE}
    | {"titleColor": SOFT, "titleFontSize": 12, "titleFontWeight": "normal", "labelSeparation": 6},
    "legend": {"orient": "bottom", "labelColor": INK, "labelFontSize": 12, "symbolSize": 90, "symbolStrokeWidth": 2}
    | {"titleColor": SOFT, "titleFontSize": 12, "titleFontWeight": "normal"},
    "view": {"stroke": RULE},
}


@dataclass(frozen=True)
class Field:
    """A column of the rows: its key, title and number format (d3's; "": as it is)."""

    key: str
    title: str
    form: str = ""


@dataclass(frozen=True)
class Style:
    """How the names of a chart look."""

    names: list[str]  # of the rows
    scale: Any  # of the colours
    colour: Any
    shape: Any
    dash: Any


def style(
    rows: Sequence[PlainRow], by: Field, symbol: str | None = None, shapes: int = MANY, order: Sequence[str] = ()
) -> Style:
    """Colours in the order of ``order`` or of the rows, and dashes or shapes for more than eight names.

    ``order`` holds every name of a page, so that a name looks the same in all of its charts.
    """
    import altair as alt

    present = list(dict.fromkeys(r[by.key] for r in rows))
    names = list(order) or present
    scale = alt.Scale(domain=names, range=[f"var(--c{i % MANY})" for i in range(len(names))])
    forms = alt.Scale(domain=names, range=[SHAPES[i // shapes % len(SHAPES)] for i in range(len(names))])
    dashes = alt.Scale(domain=names, range=[DASHES[i // MANY % len(DASHES)] for i in range(len(names))])
    shown = [name for name in names if name in present] if order else alt.Undefined
    field, legend = f"{by.key}:N", alt.Legend(title=None, symbolType=symbol or alt.Undefined, values=shown)
    return Style(
        present,
        scale,
        alt.Color(field, scale=scale, legend=legend),
        alt.Shape(field, scale=forms, legend=legend),
        alt.StrokeDash(field, scale=dashes, legend=legend),
    )


def isolated(by: Field) -> Any:
    """A click on the legend isolates a name, a click on another adds it, and a second click removes it."""
    import altair as alt

    return alt.selection_point(name="isolated", fields=[by.key], bind="legend", toggle="true")


def axis(
    channel: Any, field: Field, ends: tuple[float, float] | None = None, log: Sequence[float] = (), **limits: Any
) -> Any:
    """An axis of figures.

    Arguments:
        channel: ``altair.X`` or ``altair.Y``.
        field: what it shows; the format "d" allows whole numbers only.
        ends: its ends; None: from the rows.
        log: its values, if it is logarithmic; on a horizontal axis each has a tick.
        limits: ``domainMin`` and ``domainMax``.
    """
    import altair as alt

    title = field.title if channel is alt.X else None
    if log:
        ticks: dict[str, Any] = {"values": sorted(set(log)), "format": "~g"} if channel is alt.X else {"tickCount": 5}
        scale = alt.Scale(type="log", nice=channel is alt.Y)
        return channel(f"{field.key}:Q", title=title, scale=scale, axis=alt.Axis(**ticks))
    scale = alt.Scale(domain=list(ends), nice=False) if ends else alt.Scale(zero=False, nice=True, **limits)
    name, side, apart = ("x", "width", 60) if channel is alt.X else ("y", "height", 45)
    many = f"{side} / {apart}"
    if field.form == "d":  # no ticks between whole numbers
        many = f"min({many}, span(domain('{name}')))"
    ticks = {"tickCount": alt.ExprRef(f"max(1, ceil({many}))")} | ({"format": "d"} if field.form == "d" else {})
    return channel(f"{field.key}:Q", title=title, scale=scale, axis=alt.Axis(**ticks))


def tooltip(fields: Sequence[Field]) -> list[Any]:
    """What pointing at a mark shows, a line per field."""
    import altair as alt

    return [alt.Tooltip(f"{f.key}:{'Q' if f.form else 'N'}", title=f.title, format=f.form) for f in fields]


def plain_rows(rows: Sequence[PlainRow]) -> list[dict[str, Any]]:
    """Rows as JSON, rounded to six digits: enough for a picture, and a page has many."""
    return [{k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items()} for row in rows]


def _clean(value: Any) -> Any:
    """Without control characters: they are illegal in SVG, and one of them crashes vl-convert and Python with it."""
    if isinstance(value, dict):
        return {key: _clean(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_clean(part) for part in value]
    return clean(value) if isinstance(value, str) else value


def chart_spec(
    rows: Sequence[PlainRow], layers: Sequence[Any], x: Field, y: Field, height: int, description: str = ""
) -> Spec:
    """The specification of a chart of these layers, in the style of the pages."""
    import altair as alt

    title = alt.TitleParams(y.title, anchor="start", frame="group", fontSize=12, fontWeight="normal", color=SOFT)
    chart = alt.layer(  # everything at once: each further call would copy and validate the whole chart again
        *layers,
        data=alt.InlineData(values=plain_rows(rows)),
        width=WIDTH,
        height=height,
        description=description or f"{y.title} against {x.title}",
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        background="transparent",
        title=title if y.title else alt.Undefined,
        config=CONFIG,
    )
    spec: Spec = _clean(chart.to_dict())
    longest = 0
    if "params" in spec:
        # the legend belongs to the first coloured layer, and only a selection in that layer makes it clickable
        coloured = next(layer for layer in spec["layer"] if "color" in layer["encoding"])
        spec["params"][0]["views"] = [coloured["name"]]
        longest = max(map(len, coloured["encoding"]["color"]["scale"]["domain"]), default=0)
    entry = round(min(max(NARROW, SYMBOL + LETTER * longest), WIDE))
    spec["config"]["legend"] |= {"columns": WIDTH // entry, "labelLimit": entry - SYMBOL}
    del spec["$schema"]  # an address, which a page that fetches nothing does not need
    return spec


def vega_lite() -> str:
    """Altair's version of Vega-Lite, in vl-convert's notation."""
    import altair as alt

    return alt.SCHEMA_VERSION.lstrip("v").rpartition(".")[0]


def live(spec: Spec) -> Spec:
    """The same chart, as wide as its container, which also decides the number of legend columns.

    A chart that is not ``WIDTH`` wide keeps its width.

    The columns depend on the container's width, because the width of the axes depends on the legend; ``0 * width``
    triggers a new count when the window changes.
    """
    if spec["width"] != WIDTH:
        return spec
    entry = spec["config"]["legend"]["labelLimit"] + SYMBOL
    columns = {"expr": f"max(1, floor((0 * width + containerSize()[0]) / {entry}))"}
    legend = {**spec["config"]["legend"], "columns": columns}
    return {**spec, "width": "container", "config": {**spec["config"], "legend": legend}}


def svg(spec: Spec, prefix: str = "") -> str:
    """The chart as a drawing, with the page's variables for colours.

    Arguments:
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

    Arguments:
        spec: the chart.
        theme: the colour theme, with its background.
        scale: pixels per unit; the chart is 640 units wide.
    """
    import vl_convert

    colours = THEMES[theme]
    text = re.sub(r"var\((--\w+)\)", lambda name: colours[name[1]], json.dumps({**spec, "background": PAPER}))
    return bytes(vl_convert.vegalite_to_png(text, vl_version=vega_lite(), scale=scale))
