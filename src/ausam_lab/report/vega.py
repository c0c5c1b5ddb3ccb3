"""What all charts share: axes, colours, legends and tooltips as Vega-Lite.

Colours are CSS variables of the page (``var(--c0)``), so a chart follows the light or dark theme without being drawn
twice.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Spec = dict[str, Any]
PlainRow = Mapping[str, Any]  # a row of figures and words, as in JSON

VEGA_LITE = "6.1"  # the version that the charts are written for, in vl-convert's notation
THEMES = {  # the CSS variables of a page
    "light": {"--paper": "#fff", "--ink": "#1b1f24", "--soft": "#59626d", "--rule": "#d5dae0", "--wash": "#f3f6f9"}
    | {"--c0": "#0072b2", "--c1": "#d55e00", "--c2": "#00805d", "--c3": "#b8538f"}
    | {"--c4": "#8a6d00", "--c5": "#6a4fc0", "--c6": "#2b98d4", "--c7": "#5a6068"},
    "dark": {"--paper": "#14181d", "--ink": "#e8ecf1", "--soft": "#a3adb8", "--rule": "#38414b", "--wash": "#1d232a"}
    | {"--c0": "#4db2f0", "--c1": "#ff8b4a", "--c2": "#3fd0a2", "--c3": "#f29ccc"}
    | {"--c4": "#e8c547", "--c5": "#b3a1ff", "--c6": "#9fdcff", "--c7": "#b4bcc6"},
}
PAPER, INK, SOFT, RULE = (f"var(--{name})" for name in ("paper", "ink", "soft", "rule"))
COLOURS = tuple(f"var(--c{i})" for i in range(8))  # of names
ENTRY = 200  # the width of a legend entry; ``0 * width`` counts the columns anew when the window changes
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
SELECTED = {"condition": {"param": "isolated", "value": 1.0}, "value": 0.06}  # the opacity of a mark


@dataclass(frozen=True)
class Field:
    """A column of the rows: its key, title and number format (d3's; "": as it is)."""

    key: str
    title: str
    form: str = ""


def names_of(rows: Iterable[PlainRow], by: Field) -> list[str]:
    """The names in the rows, each once, in their order."""
    return list(dict.fromkeys(row[by.key] for row in rows))


def colours(rows: Sequence[PlainRow], by: Field) -> Spec:
    """The channel that tells names apart, in the order of the rows; beyond eight names, colours repeat."""
    names = names_of(rows, by)
    scale = {"domain": names, "range": [COLOURS[i % len(COLOURS)] for i in range(len(names))]}
    legend = {"title": None, "symbolType": "stroke"} if len(names) > 1 else None
    return {"field": by.key, "type": "nominal", "scale": scale, "legend": legend}


def isolating(by: Field) -> list[Spec]:
    """The parameter of the first coloured layer: a click on the legend isolates a name, another click adds one."""
    select = {"type": "point", "fields": [by.key], "toggle": "true"}
    return [{"name": "isolated", "select": select, "bind": "legend"}]


def axis(
    name: Literal["x", "y"],
    field: Field,
    *,
    log: bool = False,
    at: Sequence[float] = (),
    limits: Mapping[str, float] | None = None,
) -> Spec:
    """An axis of figures.

    Arguments:
        name: which axis; the title of a vertical one stands above the chart.
        field: what it shows; the format "d" allows whole numbers only.
        log: whether it is logarithmic.
        at: where its ticks are; none: Vega decides.
        limits: ``domainMin`` and ``domainMax``.
    """
    channel: Spec = {"field": field.key, "type": "quantitative", "title": field.title if name == "x" else None}
    if log:
        ticks: Spec = {"values": list(at)} if at else {"tickCount": 5}
        return channel | {"scale": {"type": "log", "nice": False, "padding": 12}, "axis": ticks | {"format": "~g"}}
    ticks = {"format": "d", "tickMinStep": 1} if field.form == "d" else {}
    return channel | {"scale": {"zero": False, "nice": True, **(limits or {})}, "axis": {"tickCount": 6} | ticks}


def tooltip(fields: Sequence[Field]) -> list[Spec]:
    """What pointing at a mark shows, a line per field."""
    return [
        {"field": f.key, "title": f.title} | ({"type": "quantitative", "format": f.form} if f.form else NOMINAL)
        for f in fields
    ]


NOMINAL = {"type": "nominal"}


def data(rows: Sequence[PlainRow]) -> Spec:
    """Rows as inline data, rounded to six digits: enough for a picture, and a page has many."""
    return {"values": [{k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in r.items()} for r in rows]}


def layer(name: str, mark: Spec, encoding: Spec, **parts: Any) -> Spec:
    """A layer of a chart."""
    return {"name": name, "mark": mark, "encoding": encoding, **parts}


def chart(rows: Sequence[PlainRow], layers: Sequence[Spec], height: int, *, title: str = "", description: str) -> Spec:
    """The specification of a chart, as wide as its container.

    Arguments:
        rows: the data of all layers that have none of their own.
        layers: from the bottom to the top.
        height: of the plot.
        title: small, above the plot: the title of the vertical axis.
        description: for screen readers.
    """
    above = {"text": title, "anchor": "start", "frame": "group", "fontSize": 12, "fontWeight": "normal", "color": SOFT}
    return {
        "data": data(rows),
        "layer": list(layers),
        "width": "container",
        "height": height,
        "description": description,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": "transparent",
        "config": CONFIG,
    } | ({"title": above} if title else {})


def heading(title: str, subtitle: str) -> Spec:
    """A title with a sentence, inside the picture; in lines that a phone shows whole."""
    lines = {"text": textwrap.wrap(title, 40), "subtitle": textwrap.wrap(subtitle, 48)}
    look = {"color": INK, "fontSize": 15, "subtitleColor": SOFT, "subtitleFontSize": 13, "subtitlePadding": 6}
    return {**lines, **look, "anchor": "start", "frame": "bounds", "offset": 24}
