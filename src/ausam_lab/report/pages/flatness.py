"""How flat the minima of one or several runs are: a table for a terminal, and the page, flatness.html."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from ausam.diagnostics import Eigenvalues, Sharpness, Slice, StepGeometry, Surface, Trace
from ausam_lab.config import Config
from ausam_lab.report import charts, html
from ausam_lab.report.charts import Picture
from ausam_lab.report.table import Table, to_html
from ausam_lab.report.text import NONE, moment, number, percent
from ausam_lab.report.vega import Field

COLUMNS = (
    "Largest eigenvalue",
    "Trace",
    "Worst rise",
    "In groups",
    "Adaptive",
    "Training loss",
    "Training accuracy",
    "Memorised",
    "Test",
)
EVAL_MODE = (
    "Everything is measured in eval mode: BatchNorm uses its running statistics and dropout is off. A network with "
    "BatchNorm or dropout is a different function during training."
)


@dataclass(frozen=True)
class Minimum:
    """The last weights of a run, measured."""

    name: str
    config: Config
    epoch: int
    parameters: int
    samples: int
    rho: float
    test: float | None  # None until the run has ended
    accuracy: float  # fraction of the samples that are given their label, right or wrong
    memorised: float | None  # the same of the samples with a wrong label; None if there are none
    eigenvalues: Eigenvalues
    trace: Trace
    whole: Sharpness
    groups: Sharpness
    adaptive: Sharpness
    step: StepGeometry
    line: Slice
    surface: Surface | None  # only if it is measured alone

    @property
    def figures(self) -> tuple[float | None, ...]:
        """The figures of :data:`COLUMNS`."""
        middle = len(self.whole.rho) // 2
        rises = (sharpness.worst[middle] for sharpness in (self.whole, self.groups, self.adaptive))
        curvature = (self.eigenvalues.values[0], self.trace.value)
        return (*curvature, *rises, self.whole.loss, self.accuracy, self.memorised, self.test)


@dataclass(frozen=True)
class Flatness:
    """The minima of one or several runs."""

    command: str
    created: str
    minima: tuple[Minimum, ...]
    failed: dict[str, str]  # why a run could not be measured, by its folder

    @property
    def names(self) -> list[str]:
        """The names of the runs, each once."""
        return list(dict.fromkeys(minimum.name for minimum in self.minima))


def verdict(flatness: Flatness) -> str:
    """One line: who is the flattest, or how flat a single minimum is."""
    minima = flatness.minima
    if len(flatness.names) == 1:
        first = minima[0]
        middle = len(first.whole.rho) // 2
        return (
            f"Within rho = {first.rho:g}, the loss rises from {number(first.whole.loss)} by up to "
            f"{number(first.whole.worst[middle])}, in a random direction by {number(first.whole.average[middle])}."
        )
    by = {name: fmean(m.eigenvalues.values[0] for m in minima if m.name == name) for name in flatness.names}
    low, high = min(by, key=by.__getitem__), max(by, key=by.__getitem__)
    return (
        f"By the largest eigenvalue, {low} is the flattest ({number(by[low])}) and {high} the sharpest "
        f"({number(by[high])}). A network that has learned less may be flatter for that reason alone."
    )


def table(flatness: Flatness, *, every: bool = False) -> Table:
    """The figures of every run, or the means over the seeds of each name."""
    rows = []
    for name in flatness.names:
        runs = [m for m in flatness.minima if m.name == name]
        groups = [[m] for m in runs] if every else [runs]
        for group in groups:
            title = [name, group[0].config.seed] if every else [name]
            means = [_mean(column) for column in zip(*(m.figures for m in group), strict=True)]
            rows.append((*title, *_cells(means)))
    return Table.of(("Run", "Seed", *COLUMNS) if every else ("Run", *COLUMNS), rows)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _cells(figures: Sequence[float | None]) -> list[str]:
    *flat, accuracy, memorised, test = figures
    shares = [NONE if share is None else percent(share) for share in (accuracy, memorised)]
    return [*(number(v or 0.0) for v in flat), *shares, NONE if test is None else f"{test:.2f} %"]


def _more(minimum: Minimum) -> Table:
    """Further figures of one run."""
    eigenvalues, step = minimum.eigenvalues, minimum.step
    rows = [
        ("Largest eigenvalues", ", ".join(map(number, eigenvalues.values))),
        ("Trace", f"{number(minimum.trace.value)} ± {number(minimum.trace.error)}"),
        ("Cosine of SAM's gradient and the plain one", f"{step.cosine:.3f}"),
        ("SAM's first-order descent, plain = 1", f"{step.descent:.3f}"),
        ("Rank correlation of a sample's loss and its change under SAM's perturbation", f"{step.loss_rank:.2f}"),
        ("Weights", f"{minimum.parameters:,}, after epoch {minimum.epoch}"),
    ]
    if not eigenvalues.converged:
        rows.insert(1, ("The search for eigenvalues has not converged", "lower bounds"))
    return Table.of(("Figure", "Value"), rows)


def note(flatness: Flatness) -> str:
    """How to read the table."""
    first = flatness.minima[0]
    return (
        f"Worst rise: the largest rise in training loss within rho = {first.rho:g}. In groups: each group of "
        f"{first.groups.m} samples has its own worst point, as in training. Adaptive: the ball is scaled by the "
        "weights, so that their scale does not matter. Memorised: of the samples with a wrong label, those that are "
        "given it."
    )


def pictures(flatness: Flatness) -> Iterator[Picture]:
    """The charts: of the first seed, a line per run."""
    order = flatness.names
    shown = [next(m for m in flatness.minima if m.name == name) for name in order]
    radius, rise = Field("x", "radius (Euclidean norm)", ".3~g"), Field("y", "rise in loss", ".3~g")
    points = [(m.name, m.whole.rho, m.whole.worst) for m in shown]
    if len(shown) == 1:
        (one,) = shown
        points = [
            ("worst, all samples", one.whole.rho, one.whole.worst),
            (f"worst, groups of {one.groups.m}", one.groups.rho, one.groups.worst),
            ("worst, adaptive ball", one.adaptive.rho, one.adaptive.worst),
            ("random direction", one.whole.rho, one.whole.average),
        ]
    rows = [{"x": x, "y": y, "of": name} for name, xs, ys in points for x, y in zip(xs, ys, strict=True)]
    yield Picture(
        "rise",
        charts.lines(rows, radius, rise, Field("of", ""), [radius, rise], log="xy"),
        "Worst rise within a radius",
    )
    t, loss = Field("x", "distance along it (1: the norm of each filter)", ".2~f"), Field("y", "loss", ".3~g")
    rows = [{"x": x, "y": y, "of": m.name} for m in shown for x, y in zip(m.line.position, m.line.loss, strict=True)]
    spec = charts.lines(rows, t, loss, Field("of", ""), [t, loss])
    along = "0 is the last weights. At 1 and -1, every filter has moved by its own norm."
    yield Picture("line", spec, "Along a random direction", along)
    for surface in (m.surface for m in shown if m.surface is not None):
        squares = [
            {"s": round(s, 6), "t": round(t, 6), "loss": surface.loss[i][j]}
            for i, s in enumerate(surface.position)
            for j, t in enumerate(surface.position)
        ]
        spec = charts.heat(
            squares,
            Field("s", "first (filter norms)", ".2~f"),
            Field("t", "second", ".2~f"),
            Field("loss", "loss", ".3~g"),
            log=True,
        )
        middle = "The last weights are in the middle. Dark is low."
        yield Picture("surface", spec, "On a plane of two random directions", middle)


def render(flatness: Flatness) -> str:
    """The page; it fetches nothing."""
    first = flatness.minima[0]
    title = f"{first.config.data}: how flat is the minimum?"
    about = f"{len(flatness.minima)} runs, " if len(flatness.minima) > 1 else ""
    body = [
        html.heading(title, 1),
        html.paragraph(f"{about}{first.config.model}, {first.samples} training samples, not augmented", "soft"),
        html.paragraph(verdict(flatness), "lead"),
        to_html(table(flatness)),
        html.paragraph(note(flatness), "note"),
        *html.pictures(pictures(flatness)),
    ]
    if len(flatness.minima) > len(flatness.names):
        body.append(html.details("Every run", [to_html(table(flatness, every=True))]))
    body += [html.paragraph(f"{folder} was not measured: {why}", "open") for folder, why in flatness.failed.items()]
    body += [
        html.heading(f"More figures of {first.name}"),
        to_html(_more(first)),
        html.paragraph(EVAL_MODE, "note"),
        html.paragraph(f"Measured {moment(flatness.created)}:", "note"),
        html.code(flatness.command),
    ]
    return html.page(title, body, width=62)
