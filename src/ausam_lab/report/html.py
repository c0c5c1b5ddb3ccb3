"""What all pages share: their shell, their style, and the fragments that they consist of.

:func:`page` puts fragments into a page, and Vega's JavaScript after them if one of them is a chart. Text is escaped:

    page("A title", [heading("A title", 1), paragraph("What it shows."), to_html(table), chart(spec)])
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from importlib import resources

import jinja2
from markupsafe import Markup, escape

from ausam_lab.report.charts import Spec
from ausam_lab.report.text import NONE, moment, unbroken

VEGA_LITE = "6.1"  # the version that the charts are written for, in vl-convert's notation
THEMES = {  # the CSS variables of a page
    "light": {"--paper": "#fff", "--ink": "#1b1f24", "--soft": "#59626d", "--rule": "#d5dae0", "--wash": "#f3f6f9"}
    | {"--c0": "#0072b2", "--c1": "#d55e00", "--c2": "#00805d", "--c3": "#b8538f"}
    | {"--c4": "#8a6d00", "--c5": "#6a4fc0", "--c6": "#2b98d4", "--c7": "#5a6068"},
    "dark": {"--paper": "#14181d", "--ink": "#e8ecf1", "--soft": "#a3adb8", "--rule": "#38414b", "--wash": "#1d232a"}
    | {"--c0": "#4db2f0", "--c1": "#ff8b4a", "--c2": "#3fd0a2", "--c3": "#f29ccc"}
    | {"--c4": "#e8c547", "--c5": "#b3a1ff", "--c6": "#9fdcff", "--c7": "#b4bcc6"},
}
TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
CHART = '<figure class="chart'
CLICK = "Click a legend entry to isolate it."


def page(title: str, body: Iterable[Markup | str], *, width: int = 54) -> str:
    """A self-contained page: it fetches nothing, and every name in it is escaped.

    Arguments:
        title: the window title. Plain text.
        body: the fragments, in order. Any other text is escaped.
        width: the maximum width in rem.
    """
    parts = [part for part in body if part]
    drawn = any(CHART in part for part in parts if hasattr(part, "__html__"))
    scripts = [Markup(javascript()), source("embed.js")] if drawn else []  # noqa: S704  (vl-convert wrote it)
    return str(fill("shell.html", title=title, parts=parts, width=width, themes=THEMES, scripts=scripts)) + "\n"


def fill(template: str, **values: object) -> Markup:
    """Fill a template of this package. All values are escaped.

    Arguments:
        template: its name in ``report/templates``.
        values: its values. A missing one is an error.
    """
    return Markup(TEMPLATES.get_template(template).render(**values))  # noqa: S704  (the template escapes)


def heading(text: Markup | str, level: int = 2) -> Markup:
    """A heading."""
    return Markup("<h{}>{}</h{}>").format(level, unbroken(text), level)


def paragraph(text: Markup | str, style: str = "") -> Markup:
    """A paragraph: "lead", "soft", "note" (small), "open" (framed), or plain. Nothing without text."""
    kind = Markup(' class="{}"').format(style) if style else ""
    return Markup("<p{}>{}</p>").format(kind, unbroken(text)) if text else Markup("")


def link(address: str, text: str) -> Markup:
    """A link to a file beside the page. The text alone without an address."""
    return Markup('<a href="{}">{}</a>').format(address, text) if address else escape(text)


def links(addresses: Mapping[str, str]) -> Markup:
    """Several of them, by their texts, in a row."""
    return Markup(", ").join(link(address, text) for text, address in addresses.items())


def code(text: str) -> Markup:
    """A command, as it was typed. A line breaks between words, not inside ``--seeds``."""
    words = [Markup("<span>{}</span>").format(word) if "-" in word else word for word in text.split(" ")]
    return Markup("<code>{}</code>").format(Markup(" ").join(words))


def facts(values: Mapping[str, object]) -> Markup:
    """Names with their values. A dash where there is none."""
    one = Markup("<div><dt>{}</dt><dd>{}</dd></div>")
    return Markup("<dl>{}</dl>").format(Markup("").join(one.format(k, _fact(v)) for k, v in values.items()))


def _fact(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or NONE
    return NONE if value is None or value == "" else moment(str(value))


def details(summary: str, inside: Iterable[Markup]) -> Markup:
    """Fragments that a click on their summary unfolds."""
    return Markup("<details><summary>{}</summary>{}</details>").format(summary, Markup("").join(inside))


def chart(spec: Spec, title: str = "", note: str = "") -> Markup:
    """A chart of :mod:`ausam_lab.report.charts` with its heading and how to read it. The browser draws it."""
    square = spec["width"] == spec["height"]
    figure = fill("figure.html", spec=spec, about=spec["description"], square=square)
    return Markup("").join([heading(title) if title else "", figure, paragraph(note, "note")])


@functools.cache
def javascript() -> str:
    """Vega, Vega-Lite and vega-embed as one script (0.9 MB), from vl-convert: no network."""
    import vl_convert

    return str(vl_convert.javascript_bundle(vl_version=VEGA_LITE))  # type: ignore[call-arg]  # its stub lacks the default


def source(name: str) -> Markup:
    """A file of ``report/templates`` as it is: a script or a style of a page."""
    return Markup(resources.files(__package__).joinpath("templates", name).read_text("utf-8"))  # noqa: S704  (ours)
