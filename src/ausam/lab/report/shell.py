"""What all pages share: shell, style, and charts that work without a network and without scripts.

A page consists of fragments. :func:`fill` makes one from a template and escapes all values; :func:`figure` makes one
from a chart. :func:`page` adds the shell around them, and Vega's JavaScript if one of them is a chart:

    body = [fill("comparison.html", found=found), figure(charts.lines(rows, ...))]
    page("A title", body)
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterable
from importlib import resources
from typing import TYPE_CHECKING, Any

from ausam.lab.report import charts
from ausam.lab.report.text import clean

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

CHART = '<figure class="chart">'


def page(title: str, body: Iterable[Markup | str], *, width: int = 54) -> str:
    """A self-contained page: it fetches nothing, and only the shell's scripts may run.

    Args:
        title: the window title; plain text.
        body: fragments from :func:`fill` and :func:`figure`, in order. Any other text is escaped.
        width: the maximum width in rem.
    """
    parts = [part for part in body if part]
    scripts = [vega(), _source("embed.js")] if any(CHART in part for part in parts if hasattr(part, "__html__")) else []
    values = {"themes": charts.THEMES, "policy": _policy(scripts), "scripts": list(map(_safe, scripts))}
    return str(fill("shell.html", title=title, parts=parts, width=width, **values)) + "\n"


def fill(template: str, **values: object) -> Markup:
    """Fill a template of this package; all values are escaped and stripped of control characters.

    Args:
        template: its name in ``report/templates``.
        values: its values; a missing one is an error.
    """
    return _safe(_templates().get_template(template).render(**values))


def figure(spec: charts.Spec) -> Markup:
    """A chart in a page: interactive, or a static drawing if scripts are off.

    Args:
        spec: a chart from :mod:`ausam.lab.report.charts`.
    """
    prefix = hashlib.sha256(repr(spec).encode()).hexdigest()[:8] + "-"
    return fill("figure.html", spec=charts.live(spec), drawing=_safe(charts.svg(spec, prefix)))


@functools.cache
def vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script (0.9 MB), from vl-convert: no network."""
    import vl_convert

    return str(vl_convert.javascript_bundle(vl_version=charts.vega_lite()))  # type: ignore[call-arg]  # its stub lacks the default


def _policy(scripts: Iterable[str]) -> str:
    """The content security policy: load nothing, and run only these scripts, identified by digest."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"


def _prose(text: object) -> str:
    """Keep a figure, its spread and its unit on one line."""
    return str(text).replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")


@functools.cache
def _templates() -> Environment:
    import jinja2

    def shown(value: Any) -> Any:
        return value if hasattr(value, "__html__") else clean(value) if isinstance(value, str) else value

    made = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    made.filters["prose"] = _prose
    return made


def _source(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _safe(text: str) -> Markup:
    from markupsafe import Markup

    return Markup(text)  # noqa: S704  what a template, vl-convert or this package wrote
