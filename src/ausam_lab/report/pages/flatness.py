"""How flat the minima of one or several runs are: a table for a terminal, and the page, flatness.html."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from ausam.diagnostics import Eigenvalues, Sharpness, Slice, Surface, Trace
from ausam_lab.config import Config
from ausam_lab.report import charts, html
from ausam_lab.report.charts import Field
from ausam_lab.report.table import Table, to_html
from ausam_lab.report.text import NONE, join, moment, number, percent

EVAL_MODE = (
    "Everything is measured in eval mode: BatchNorm uses its running statistics and dropout is off. A network with "
    "BatchNorm or dropout is a different function during training."
)

ADVICE = {"diverged": ("Diverged", "Lower the learning rate"), "unfitted": ("Not fitted", "Train longer")}


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
    verdict: str  # the kind of its audit's verdict: "unfitted", "diverged" or another; empty if there is none
    accuracy: float  # fraction of the samples that are given their label, right or wrong
    memorised: float | None  # the same of the samples with a wrong label; None if there are none
    eigenvalues: Eigenvalues
    trace: Trace
    sharpness: Sharpness
    line: Slice
    surface: Surface | None  # only if it is measured alone


@dataclass(frozen=True)
class Flatness:
    """The minima of one or several runs."""

    command: str
    created: str
    minima: tuple[Minimum, ...]

    @property
    def names(self) -> list[str]:
        """The names of the runs, each once."""
        return list(dict.fromkeys(minimum.name for minimum in self.minima))


def worst(minimum: Minimum) -> float:
    """The largest rise within rho, which is in the middle of the radii."""
    return minimum.sharpness.worst[len(minimum.sharpness.rho) // 2]


def verdict(flatness: Flatness) -> str:
    """What cannot be compared, then the flattest run, or how flat a single minimum is."""
    texts = []
    for kind, (what, remedy) in ADVICE.items():
        names = list(dict.fromkeys(m.name for m in flatness.minima if m.verdict == kind))
        texts += [f"{what}: {join(names)}. {remedy}. Flatness says nothing there."] if names else []
    fitted = [m for m in flatness.minima if m.verdict not in ADVICE]
    names = list(dict.fromkeys(m.name for m in fitted))
    by = {name: fmean(m.eigenvalues.values[0] for m in fitted if m.name == name) for name in names}
    if len(by) > 1:
        low, high = min(by, key=by.__getitem__), max(by, key=by.__getitem__)
        texts.append(f"By the largest eigenvalue, {low} is the flattest ({number(by[low])}) and")
        texts.append(f"{high} the sharpest ({number(by[high])}). A network that has learned less may be flatter, too.")
    elif len(flatness.names) == 1 and fitted:
        first = fitted[0]
        texts.append(f"Within a distance of {first.rho:g} of the weights, the training loss rises from")
        texts.append(f"{number(first.sharpness.loss)} by at most {number(worst(first))}.")
    return " ".join(texts)


def table(flatness: Flatness) -> Table:
    """The means over the seeds of each name."""
    rows = []
    for name in flatness.names:
        group = [m for m in flatness.minima if m.name == name]
        tests = [m.test for m in group if m.test is not None]
        memorised = [m.memorised for m in group if m.memorised is not None]
        rows.append(
            (
                name,
                _mean(map(worst, group)),
                _mean(m.eigenvalues.values[0] for m in group),
                _mean(m.trace.value for m in group),
                _mean(m.sharpness.loss for m in group),
                percent(fmean(m.accuracy for m in group)),
                percent(fmean(memorised)) if memorised else NONE,
                f"{fmean(tests):.2f} %" if tests else NONE,
            )
        )
    head = ("Run", "Worst rise", "Eigenvalue", "Trace", "Train loss", "Fitted", "Memorised", "Test")
    return Table.of(head, rows)


def _mean(values: Iterable[float]) -> str:
    return number(fmean(values))


def note(flatness: Flatness) -> str:
    """How to read the table."""
    slow = any(not m.eigenvalues.converged for m in flatness.minima)
    return (
        f"Worst rise: the largest rise in training loss within rho = {flatness.minima[0].rho:g} (the Euclidean norm of "
        "all weights). Eigenvalue and trace are the largest eigenvalue and the trace of the Hessian of the training "
        "loss. Fitted: samples that are given their label, right or wrong. Memorised: samples with a wrong label that "
        f"are given it.{' Some eigenvalues are lower bounds: the search has not converged.' * slow}"
    )


def _charts(flatness: Flatness) -> Iterator[Markup]:
    """The charts, a line per run, of its first seed that has not diverged."""
    sound = [m for m in flatness.minima if m.verdict != "diverged"]
    shown = [next(m for m in sound if m.name == name) for name in dict.fromkeys(m.name for m in sound)]
    if not shown:
        return
    of = Field("of", "run")
    radius, rise = Field("x", "distance from the last weights", ".3~g"), Field("y", "rise in training loss", ".3~g")
    lines = [(m.name, m.sharpness.rho, m.sharpness.worst) for m in shown]
    if len(shown) == 1:
        whole = shown[0].sharpness
        lines = [("worst direction", whole.rho, whole.worst), ("random direction", whole.rho, whole.average)]
    rows = [{"x": x, "y": y, "of": name} for name, xs, ys in lines for x, y in zip(xs, ys, strict=True)]
    spec = charts.lines(rows, radius, rise, of, [radius, rise], log=True)
    yield html.chart(spec, "Worst rise within a distance", html.CLICK)
    t, loss = Field("x", "distance (1: the norm of each filter)", ".2~f"), Field("y", "training loss", ".3~g")
    rows = [{"x": x, "y": y, "of": m.name} for m in shown for x, y in zip(m.line.position, m.line.loss, strict=True)]
    yield html.chart(charts.lines(rows, t, loss, of, [t, loss]), "Along a random direction")
    if len(shown) == 1 and (plane := shown[0].surface) is not None:
        squares = [
            {"s": round(s, 6), "t": round(t, 6), "loss": plane.loss[i][j]}
            for i, s in enumerate(plane.position)
            for j, t in enumerate(plane.position)
        ]
        x, y = Field("s", "first direction (norms of each filter)", ".2~f"), Field("t", "second direction", ".2~f")
        spec = charts.heat(squares, x, y, Field("loss", "training loss", ".3~g"))
        yield html.chart(spec, "On a plane of two random directions", "The last weights are in the middle.")


def render(flatness: Flatness, report: str = "") -> str:
    """The page. It fetches nothing. ``report`` is where the page of the runs is, if there is one."""
    first, runs = flatness.minima[0], len(flatness.minima)
    title = f"{first.config.data}: how flat is the minimum?"
    bad = any(m.verdict in ADVICE for m in flatness.minima)
    about = f"{runs} run{'s' * (runs > 1)}, {first.config.model}, {first.samples} training samples, not augmented"
    body = [
        html.heading(title, 1),
        html.paragraph(about, "soft"),
        *([html.paragraph(html.link(report, "The scores of these runs"))] if report else []),
        html.paragraph(verdict(flatness), "open" if bad else "lead"),
        to_html(table(flatness)),
        html.paragraph(note(flatness), "note"),
        *_charts(flatness),
        html.details(
            f"How it was made, {moment(flatness.created)}",
            [html.code(flatness.command), html.paragraph(EVAL_MODE, "note")],
        ),
    ]
    return html.page(title, body, width=62)
