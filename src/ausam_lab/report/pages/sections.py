"""What the pages of measurements share: findings, conditions, and sections that show a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ausam_lab.config import Config
from ausam_lab.records.run import Environment
from ausam_lab.records.store import Record
from ausam_lab.report import charts, html
from ausam_lab.report.charts import Picture
from ausam_lab.report.vega import Field

if TYPE_CHECKING:
    from markupsafe import Markup

VERSION = 4  # of the results and of the measurements; pieces with another version are measured again
EVAL_MODE = (
    "Everything is measured in eval mode: BatchNorm uses its running statistics and dropout is off. A network with "
    "BatchNorm or dropout is a different function during training."
)
EPOCH = Field("x", "epoch", "d")


@dataclass(frozen=True)
class Finding:
    """A sentence computed from the figures. ``holds`` tells whether a claim holds; None if nothing is claimed."""

    text: str
    holds: bool | None = None
    part: str = ""  # the measurement that it belongs to


@dataclass(frozen=True)
class NotMeasured:
    """A measurement that was left out, and why."""

    part: str
    why: str


@dataclass(frozen=True)
class Conditions:
    """The conditions under which the figures were measured."""

    pair: str
    parameters: int
    trained: int  # completed epochs
    epochs: tuple[int, ...]  # epochs with known weights
    samples: int
    batch_size: int
    rho: float
    rho_from: str
    config: Config
    environment: Environment


@dataclass(frozen=True)
class Measurements(Record):
    """What was measured on one run, and under which conditions; a page adds a field for each result."""

    VERSION = VERSION

    command: str
    created: str
    conditions: Conditions
    findings: tuple[Finding, ...]
    not_measured: tuple[NotMeasured, ...]


@dataclass(frozen=True)
class ResultSection:
    """How the result of a measurement is shown: a title, the sentences it gives, and its charts."""

    title: str
    sentences: Callable[[Any], Iterable[Finding]]
    charts: Callable[[Any], Iterable[Picture]]
    claim: str = ""  # what is tested


def findings(sections: Mapping[str, ResultSection], results: Mapping[str, Any]) -> tuple[Finding, ...]:
    """The sentences of all results, in the order of the page."""
    shown = [name for name in sections if results.get(name) is not None]
    return tuple(replace(f, part=name) for name in shown for f in sections[name].sentences(results[name]))


def render(title: str, sections: Mapping[str, ResultSection], measured: Measurements, lead: str = "") -> str:
    """The page of a run's measurements; it fetches nothing.

    Arguments:
        title: its heading.
        sections: how each result is shown, by the name of its field.
        measured: the results.
        lead: a sentence that says the most important thing first.
    """
    conditions = measured.conditions
    results = {name: getattr(measured, name) for name in sections}
    body = [
        html.heading(title, 1),
        html.paragraph(f"{conditions.pair}, {conditions.config.model}, {conditions.trained} epochs", "soft"),
        *([html.paragraph(lead, "lead")] if lead else []),
        *section_fragments(sections, results, measured.findings),
        *closing_fragments(measured.not_measured, conditions, measured.created, measured.command),
    ]
    return html.page(title, body, width=58)


def section_fragments(
    sections: Mapping[str, ResultSection], results: Mapping[str, Any], sentences: Sequence[Finding]
) -> Iterator[Markup]:
    """Every result with its claim, its sentences and its charts."""
    shown = {name: section for name, section in sections.items() if results.get(name) is not None}
    for i, (name, section) in enumerate(shown.items()):
        yield html.heading(section.title, key=name)
        if section.claim:
            yield html.paragraph(section.claim, "soft")
        yield from finding_fragments(finding for finding in sentences if finding.part == name)
        yield from html.pictures(section.charts(results[name]), level=3, hint=not i)


def finding_fragments(sentences: Iterable[Finding]) -> Iterator[Markup]:
    """A paragraph per finding; a claim says whether it holds."""
    for finding in sentences:
        yield html.paragraph(finding.text, mark=_mark(finding.holds))


def _mark(holds: bool | None) -> Markup | str:
    return "" if holds is None else html.badge("holds here" if holds else "does not hold here", holds)


def closing_fragments(
    not_measured: Sequence[NotMeasured], conditions: Conditions, created: str, command: str
) -> Iterator[Markup]:
    """What was left out, the conditions, and the command."""
    if not_measured:
        yield html.heading("Not measured")
        for part in not_measured:
            yield html.paragraph(f"{part.part}: {part.why}", "open")
    yield html.heading("Conditions")
    yield html.facts(_facts(conditions, created))
    yield html.paragraph(EVAL_MODE, "note")
    yield html.code(command)


def _facts(conditions: Conditions, created: str) -> dict[str, object]:
    epochs = conditions.epochs
    return {
        "Weights after epochs": ", ".join(map(str, epochs[:30])) + (" ..." if len(epochs) > 30 else ""),
        "Samples": f"{conditions.samples} training samples, drawn at random, not augmented",
        "Batch size": conditions.batch_size,
        "rho": f"{conditions.rho:g} ({conditions.rho_from})",
        "Parameters": f"{conditions.parameters:,}",
        "Seed": conditions.config.seed,
        "Wrong labels": f"{100 * conditions.config.label_noise:g} %",
        "Processor": conditions.environment.hardware.cpu,
        "torch": conditions.environment.versions.get("torch", ""),
        "Source": conditions.environment.commit or "an installed package",
        "Measured": created,
    }


def curves(
    title: str, x: Field, y: str, points: Iterable[tuple[float, float, str]], note: str = "", **how: Any
) -> Picture:
    """A line per name.

    Arguments:
        title: the heading of the chart.
        x: the horizontal figure, with the key "x".
        y: the title of the vertical figure.
        points: x, y and the name of the line; a NaN is left out.
        note: how to read it.
        how: further arguments of :func:`ausam_lab.report.charts.lines`.
    """
    rows = [{"x": a, "y": b, "of": name} for a, b, name in points if b == b]
    field, by = Field("y", y, ".3~g"), Field("of", "")
    hover = [Field("x", x.title, x.form or ".3~g"), field]
    return Picture(title, charts.lines(rows, x, field, by, hover, **how), title, note)
