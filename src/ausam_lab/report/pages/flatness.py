"""The page of a comparison's minima, flatness.html: the flatness of all runs, side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ausam.diagnostics import Eigenvalues, Sharpness, Slice, Trace
from ausam_lab.records.store import Record
from ausam_lab.report import charts, html
from ausam_lab.report.charts import Picture
from ausam_lab.report.pages.diagnosis import ALONG, slice_curves
from ausam_lab.report.pages.sections import (
    VERSION,
    Conditions,
    Finding,
    NotMeasured,
    closing_fragments,
    curves,
)
from ausam_lab.report.table import Table, to_html
from ausam_lab.report.text import join, number, percent
from ausam_lab.report.vega import Field


@dataclass(frozen=True)
class Fit:
    """How well the last weights fit the training samples."""

    accuracy: float  # fraction of the samples that are given their label, right or wrong
    memorised: float | None  # the same of the samples with a wrong label; None if there are none


@dataclass(frozen=True)
class FlatRun:
    """How flat the minimum of one run of a comparison is."""

    name: str
    label: str
    seed: int
    epoch: int
    test: float | None  # None until the run has ended
    fit: Fit
    eigenvalues: Eigenvalues
    trace: Trace
    whole: Sharpness
    groups: Sharpness
    adaptive: Sharpness
    line: Slice


@dataclass(frozen=True)
class Between:
    """The loss on the straight line from one run's weights to another's."""

    first: str
    second: str
    seed: int
    slice: Slice


@dataclass(frozen=True)
class FlatComparison(Record):
    """The minima of a comparison, side by side."""

    FORMAT = "flatness"
    VERSION = VERSION  # of the measurements

    command: str
    created: str
    title: str
    conditions: Conditions  # of the first run
    findings: tuple[Finding, ...]
    not_measured: tuple[NotMeasured, ...]
    runs: tuple[FlatRun, ...]
    between: tuple[Between, ...]


MEASURES: dict[str, Callable[[FlatRun], float]] = {
    "the largest eigenvalue": lambda r: r.eigenvalues.values[0],
    "the trace": lambda r: r.trace.value,
    "the worst rise within rho": lambda r: _middle(r.whole),
    "the worst rise in groups": lambda r: _middle(r.groups),
    "the worst rise in the adaptive ball": lambda r: _middle(r.adaptive),
}


def _middle(sharpness: Sharpness) -> float:
    """The worst rise within rho, the middle of the radii."""
    return sharpness.worst[len(sharpness.rho) // 2]


# -- findings ----------------------------------------------------------------------------------------------------------


def sentences(runs: Sequence[FlatRun]) -> Iterator[Finding]:
    """Whether each pair's minimum is flatter than SGD's, and than SAM's; and how well each has fitted."""
    names = list(dict.fromkeys(r.name for r in runs))
    for base in ("sgd", "sam"):
        for name in names:
            if base in names and name != base and (base, name) != ("sam", "sgd"):
                yield from _flatter(runs, name, base)
    losses = {name: statistics.fmean(r.whole.loss for r in runs if r.name == name) for name in names}
    by_loss = sorted(names, key=losses.__getitem__)
    lowest_first = ", ".join(f"{_label(runs, name)} {number(losses[name])}" for name in by_loss)
    yield Finding(
        f"Training loss on these samples, lowest first: {lowest_first}. "
        "A network that has learnt less may be flatter for that reason alone.",
        part="flatness",
    )
    fits = [(_label(runs, name), [r.fit for r in runs if r.name == name]) for name in names]
    fitted = ", ".join(f"{name} {percent(statistics.fmean(fit.accuracy for fit in of))}" for name, of in fits)
    memorised = ", ".join(
        f"{name} {percent(statistics.fmean(known))}"
        for name, of in fits
        if (known := [fit.memorised for fit in of if fit.memorised is not None])
    )
    wrong = f" Of those with a wrong label: {memorised}." if memorised else ""
    yield Finding(f"Samples that are given their training label: {fitted}.{wrong}", part="flatness")


def _flatter(runs: Sequence[FlatRun], name: str, base: str) -> Iterator[Finding]:
    mine = {r.seed: r for r in runs if r.name == name}
    theirs = {r.seed: r for r in runs if r.name == base}
    seeds = sorted(mine.keys() & theirs.keys())
    if not seeds:
        return
    lower = [what for what, of in MEASURES.items() if all(of(mine[s]) < of(theirs[s]) for s in seeds)]
    rest = [what for what in MEASURES if what not in lower]
    one = " One seed cannot separate a difference from chance." if len(seeds) == 1 else ""
    every = f" with each of {len(seeds)} seeds" if len(seeds) > 1 else ""
    part = f" by {len(lower)} of {len(MEASURES)} measures{every}, but not by {join(rest)}"
    by = part if rest else f" by every measure{every}"
    flatter = f"flatter than {_label(runs, base)}'s"
    yield Finding(
        f"{_label(runs, name)}'s minimum is {f'{flatter}{by}' if lower else f'not {flatter}'}.{one}", part="flatness"
    )


def _label(runs: Sequence[FlatRun], name: str) -> str:
    return next(r.label for r in runs if r.name == name)


# -- the page ----------------------------------------------------------------------------------------------------------


FIGURES = (
    "Largest eigenvalue",
    "Trace",
    "Worst rise",
    "In groups",
    "Adaptive",
    "Training loss",
    "Training accuracy",
    "Test",
)


def lead(runs: Sequence[FlatRun]) -> str:
    """Whose minimum is the flattest, and what that may mean."""
    names = dict.fromkeys(r.name for r in runs)
    curved = {name: statistics.fmean(r.eigenvalues.values[0] for r in runs if r.name == name) for name in names}
    flattest, sharpest = min(curved, key=curved.__getitem__), max(curved, key=curved.__getitem__)
    return (
        f"By the largest eigenvalue of the Hessian, {_label(runs, flattest)}'s minimum is the flattest "
        f"({number(curved[flattest])}) and {_label(runs, sharpest)}'s the sharpest ({number(curved[sharpest])}). "
        "A network that has learnt less may be flatter for that reason alone: compare the training losses."
    )


def means_table(flat: FlatComparison) -> Table:
    """The means over the seeds of each method."""
    rows = []
    for name in dict.fromkeys(r.name for r in flat.runs):
        runs = [r for r in flat.runs if r.name == name]
        tests = [r.test for r in runs if r.test is not None]
        rows.append(
            (
                _label(flat.runs, name),
                *(number(statistics.fmean(map(of, runs))) for of in MEASURES.values()),
                f"{statistics.fmean(r.whole.loss for r in runs):.3f}",
                percent(statistics.fmean(r.fit.accuracy for r in runs)),
                f"{statistics.fmean(tests):.2f} %" if len(tests) == len(runs) else "running",
            )
        )
    return Table.of(("Mean over seeds", *FIGURES), rows)


def table(flat: FlatComparison) -> Table:
    """The figures of every run."""
    rows = [
        (
            r.label,
            r.seed,
            number(r.eigenvalues.values[0]),
            f"{number(r.trace.value)} ± {r.trace.error:.2g}",
            *(number(_middle(sharpness)) for sharpness in (r.whole, r.groups, r.adaptive)),
            f"{r.whole.loss:.3f}",
            percent(r.fit.accuracy),
            "running" if r.test is None else f"{r.test:.2f} %",
        )
        for r in flat.runs
    ]
    return Table.of(("Run", "Seed", *FIGURES), rows)


def table_note(flat: FlatComparison) -> str:
    """How to read the table."""
    return (
        f"Worst rise: the largest rise in loss within rho = {flat.conditions.rho:g}. In groups: each group of "
        f"{flat.runs[0].groups.m} samples has its own worst point. Adaptive: the ball is scaled by the weights, so "
        "that their scale does not matter."
    )


def pictures(flat: FlatComparison) -> Iterator[Picture]:
    """The charts; a method has one colour in all of them."""
    order = tuple(dict.fromkeys(r.label for r in flat.runs))
    rows = [{"x": r.eigenvalues.values[0], "run": r.label, "seed": r.seed} for r in flat.runs]
    value = Field("x", "largest eigenvalue", ".3~g")
    spec = charts.strip(rows, value, Field("run", "run"), [value, Field("seed", "seed")], order=order)
    yield Picture("eigenvalues", spec, "Largest eigenvalue, one dot per seed")
    first = min(r.seed for r in flat.runs)
    shown = [r for r in flat.runs if r.seed == first]
    points = [(x, y, r.label) for r in shown for x, y in zip(r.whole.rho, r.whole.worst, strict=True)]
    radius = Field("x", "radius")
    title = f"Worst rise within a radius, seed {first}"
    yield curves(title, radius, "worst rise in loss", points, log="xy", order=order)
    lines = [(r.line, r.label) for r in shown]
    yield slice_curves(f"Along a random direction, seed {first}", lines, ALONG, order)
    if flat.between:
        ends = [(b.slice, b.second) for b in flat.between]
        yield slice_curves(f"From {flat.between[0].first}'s minimum (0) to another (1)", ends, order=order)


def render(flat: FlatComparison) -> str:
    """The page; it fetches nothing."""
    title = f"{flat.title}: how flat are the minima?"
    conditions = flat.conditions
    about = f"{len(flat.runs)} runs, {conditions.config.model}, the same {conditions.samples} training samples"
    body = [
        html.heading(title, 1),
        html.paragraph(about, "soft"),
        html.paragraph(lead(flat.runs), "lead"),
        to_html(means_table(flat)),
        html.paragraph(table_note(flat), "note"),
        *html.pictures(pictures(flat)),
        html.heading("Findings"),
        *(html.paragraph(finding.text) for finding in flat.findings),
        html.heading("Every run"),
        to_html(table(flat)),
        html.paragraph("± is the standard error of the estimate.", "note"),
        *closing_fragments(flat.not_measured, flat.conditions, flat.created, flat.command),
    ]
    return html.page(title, body, width=62)
