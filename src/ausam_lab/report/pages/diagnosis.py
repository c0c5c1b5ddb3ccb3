"""The page of a run's diagnosis, diagnosis.html: how flat the minimum is, and which samples made it.

A measurement has its result and its section here; a function in :mod:`ausam_lab.experiments.diagnose.measures` makes
the result. A chart is one more picture of its section.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ausam.diagnostics import Eigenvalues, Group, Sharpness, Slice, StepGeometry, Surface, Trace
from ausam_lab.data.catalogue import changes
from ausam_lab.report import charts
from ausam_lab.report.charts import Picture
from ausam_lab.report.pages import sections
from ausam_lab.report.pages.sections import EPOCH, Finding, Measurements, ResultSection, curves
from ausam_lab.report.text import number, percent, span, times
from ausam_lab.report.vega import Field

ALONG = "0 is the last weights. At 1 and -1, every filter has moved by its own norm."
PLANE = "The last weights are in the middle. Dark is low."


# -- the results -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharpnessResult:
    """The rise in loss near the last weights: for all samples, for groups, and in the adaptive ball."""

    whole: Sharpness
    groups: Sharpness
    adaptive: Sharpness


@dataclass(frozen=True)
class HessianResult:
    """Curvature at the last weights."""

    eigenvalues: Eigenvalues
    trace: Trace


@dataclass(frozen=True)
class LandscapeResult:
    """Slices of the loss at the last weights, and from earlier ones (``since``) to them."""

    line: Slice
    surface: Surface
    since: int
    between: Slice | None  # None without earlier weights


@dataclass(frozen=True)
class SelectionResult:
    """Which samples were selected; gaps are counted in periods between saved epochs."""

    samples: int
    epochs: int
    period: int  # epochs between two saved tables; 0 if only the last table is known
    mean: float
    fewest: int
    most: int
    effective: float
    never: int
    worst_gap: int | None
    scored: bool  # whether only visits that gave the sample a score are counted
    groups: dict[str, tuple[Group, ...]]


@dataclass(frozen=True)
class GeometryAt:
    """The geometry of a step after an epoch: means over the mini-batches."""

    epoch: int
    step: StepGeometry


@dataclass(frozen=True)
class GeometryResult:
    """SAM's step over training."""

    rows: tuple[GeometryAt, ...]


@dataclass(frozen=True)
class Diagnosis(Measurements):
    """The diagnosis of one run."""

    FORMAT = "diagnosis"

    sharpness: SharpnessResult | None = None
    hessian: HessianResult | None = None
    landscape: LandscapeResult | None = None
    selection: SelectionResult | None = None
    geometry: GeometryResult | None = None


# -- what they say and show --------------------------------------------------------------------------------------------


def sharpness_sentences(result: SharpnessResult) -> Iterator[Finding]:
    """How much the loss rises near the last weights."""
    whole, groups = result.whole, result.groups
    middle = len(whole.rho) // 2
    rho, worst, average = (v[middle] for v in (whole.rho, whole.worst, whole.average))
    yield Finding(
        f"Within rho = {number(rho)}, the loss rises from {number(whole.loss)} by up to {number(worst)} at the "
        f"worst point that ascent finds, and by {number(average)} in a random direction.",
    )
    if worst > 0:
        yield Finding(
            f"If each group of {groups.m} samples has its own worst point, as in training, it rises by "
            f"{number(groups.worst[middle])}, {times(groups.worst[middle], worst)} as much."
            + (" It cannot be less: the ascent missed some points." if groups.worst[middle] < worst else ""),
        )
        low, high = whole.worst[middle - 1], whole.worst[middle]
        if low > 0:
            power = math.log(high / low) / math.log(whole.rho[middle] / whole.rho[middle - 1])
            shape = "closer to a slope (1)" if power < 1.5 else "closer to a bowl (2)"
            yield Finding(f"Up to rho, the worst rise grows as the radius to the power {power:.1f}: {shape}.")


def _sharpness_charts(result: SharpnessResult) -> Iterator[Picture]:
    columns = {
        "worst, all samples": (result.whole.rho, result.whole.worst),
        f"worst, groups of {result.groups.m}": (result.groups.rho, result.groups.worst),
        "random direction": (result.whole.rho, result.whole.average),
        "worst, adaptive ball": (result.adaptive.rho, result.adaptive.worst),
    }
    points = [(r, v, name) for name, (rs, vs) in columns.items() for r, v in zip(rs, vs, strict=True)]
    yield curves("Rise in loss within a radius", Field("x", "radius"), "rise in loss", points, log="xy")


def hessian_sentences(result: HessianResult) -> Iterator[Finding]:
    """How curved the minimum is."""
    e, t = result.eigenvalues, result.trace
    sure = "" if e.converged else " The search has not converged, so these are lower bounds."
    yield Finding(
        f"The largest eigenvalues of the Hessian are {', '.join(number(v) for v in e.values)}; its trace is "
        f"{number(t.value)} ± {number(t.error)}.{sure}",
    )
    if t.value > 0 and e.values[0] > 0:
        part = sum(v for v in e.values if v > 0) / t.value
        yield Finding(f"These {len(e.values)} directions account for {percent(part)} of the trace.")


def _hessian_charts(result: HessianResult) -> Iterator[Picture]:
    rows = [{"x": str(i + 1), "y": v} for i, v in enumerate(result.eigenvalues.values)]
    spec = charts.bars(rows, Field("x", "number"), Field("y", "eigenvalue", ".3~g"))
    yield Picture("eigenvalues", spec, "Largest eigenvalues")


def landscape_sentences(result: LandscapeResult) -> Iterator[Finding]:
    """What the slices show."""
    here = result.line.loss[len(result.line.loss) // 2]
    yield Finding(
        f"Along a random direction, the loss rises from {number(here)} to {number(max(result.line.loss))} when every "
        f"filter has moved by its own norm. The weights are {'' if here <= min(result.line.loss) else 'not '}the "
        "lowest point of that line.",
    )
    if result.between is not None:
        inside = result.between.loss
        bump = max(inside) - max(inside[0], inside[-1])
        what = f"over a barrier of {number(bump)}" if bump > 1e-6 * abs(inside[0]) else "without a barrier"
        yield Finding(
            f"On the straight line from {_start(result)} to the last weights, the loss goes from {number(inside[0])} "
            f"to {number(inside[-1])} {what}.",
        )


def _start(result: LandscapeResult) -> str:
    return f"epoch {result.since}" if result.since else "the initial weights"


def _landscape_charts(result: LandscapeResult) -> Iterator[Picture]:
    yield slice_curves("Along a random direction", [(result.line, "w + t d")], ALONG)
    where = result.surface.position
    squares = [
        {"s": round(s, 6), "t": round(t, 6), "loss": result.surface.loss[i][j]}
        for i, s in enumerate(where)
        for j, t in enumerate(where)
    ]
    spec = charts.heat(squares, Field("s", "s", ".2~f"), Field("t", "t", ".2~f"), Field("loss", "loss", ".3~g"))
    yield Picture("surface", spec, "On a plane of two random directions", PLANE)
    if result.between is not None:
        title = f"From {_start(result)} (0) to the last weights (1)"
        yield slice_curves(title, [(result.between, "(1 - t) first + t last")])


def slice_curves(title: str, slices: list[tuple[Slice, str]], note: str = "", order: tuple[str, ...] = ()) -> Picture:
    """The loss along one or several lines."""
    points = [(t, v, name) for one, name in slices for t, v in zip(one.position, one.loss, strict=True)]
    return curves(title, Field("x", "t"), "loss", points, note, order=order)


def selection_sentences(result: SelectionResult) -> Iterator[Finding]:
    """Which samples were selected."""
    what = "scored visits" if result.scored else "visits"
    never = {0: "", 1: ", and one sample had none"}.get(result.never, f", and {result.never} samples had none")
    yield Finding(
        f"In {result.epochs} epochs, a sample had {result.mean:.1f} {what} on average, between {result.fewest} and "
        f"{result.most}{never}. The effective sample size is {percent(result.effective)} of the data.",
    )
    if result.worst_gap is not None:
        one = "epoch" if result.period == 1 else f"period of {result.period} epochs"
        many = "epochs" if result.period == 1 else f"periods of {result.period} epochs"
        how_many = f"{result.worst_gap} {one if result.worst_gap == 1 else many}"
        yield Finding(
            f"The longest gap without a visit was {how_many}."
            if result.worst_gap
            else f"Every sample was visited in every {one}.",
        )
    labels = {g.name: g for g in result.groups.get("label", ())}
    if len(labels) == 2 and labels["clean"].visits:
        ratio = labels["wrong"].visits / labels["clean"].visits
        prefers = "prefers" if ratio > 1.05 else "avoids" if ratio < 0.95 else "neither prefers nor avoids"
        yield Finding(
            f"Samples with a wrong label were visited {ratio:.2f} times as often as samples with a correct label: the "
            f"run {prefers} wrong labels.",
        )
    scores = result.groups.get("score", ())
    if len(scores) > 1 and scores[0].visits:
        yield Finding(
            f"The 20 % of samples with the highest scores had {scores[-1].visits / scores[0].visits:.2f} times as many "
            "visits as the 20 % with the lowest.",
        )


def _selection_charts(result: SelectionResult) -> Iterator[Picture]:
    names = {"class": "by class", "label": "by label", "score": "by score, in fifths from lowest to highest"}
    for key, groups in result.groups.items():
        if 1 < len(groups) <= 20:
            rows = [{"x": g.name, "y": g.share} for g in groups]
            spec = charts.bars(rows, Field("x", key), Field("y", "visits, 1 = average", ".2~f"), rule=1.0)
            yield Picture(f"visits-{key}", spec, f"Visits {names[key]}")


def geometry_sentences(result: GeometryResult) -> Iterator[Finding]:
    """How SAM's step relates to the plain one."""
    cosines, descents = [r.step.cosine for r in result.rows], [r.step.descent for r in result.rows]
    yield Finding(
        f"Over training, the cosine between SAM's gradient and the plain one is {span(cosines, _two)}. To first "
        f"order, SAM's step lowers the loss {span(descents, _two)} times as much as the plain step.",
    )
    ranks = [r.step.loss_rank for r in result.rows if not math.isnan(r.step.loss_rank)]
    if ranks:
        yield Finding(
            "In a mini-batch, a sample's loss and the change of its loss under SAM's perturbation have a rank "
            f"correlation (Spearman) of {span(ranks, _two)}. Near 1, choosing by loss and by sharpness are the same.",
        )


def _two(value: float) -> str:
    return f"{value:.2f}"


def _geometry_charts(result: GeometryResult) -> Iterator[Picture]:
    points = [(r.epoch, r.step.cosine, "cos(g, g_SAM)") for r in result.rows]
    points += [(r.epoch, r.step.descent, "descent relative to a plain step") for r in result.rows]
    yield curves("SAM's gradient compared with the plain one", EPOCH, "ratio", points, y_from=_zero_or_below(points))
    ranks = [(r.epoch, r.step.loss_rank, "Spearman") for r in result.rows if not math.isnan(r.step.loss_rank)]
    if ranks:
        title = "Loss against loss difference, over samples"
        yield curves(title, EPOCH, "rank correlation", ranks, y_from=_zero_or_below(ranks))


def _zero_or_below(points: Iterable[tuple[float, float, str]]) -> float:
    """Where the axis begins: at 0, or at the smallest figure if that is negative."""
    return min(0.0, *(y for _, y, _ in points))


SECTIONS = {
    "sharpness": ResultSection("Sharpness at the last weights", sharpness_sentences, _sharpness_charts),
    "hessian": ResultSection("Curvature at the last weights", hessian_sentences, _hessian_charts),
    "landscape": ResultSection("The loss around the last weights", landscape_sentences, _landscape_charts),
    "selection": ResultSection("Which samples were selected", selection_sentences, _selection_charts),
    "geometry": ResultSection("The geometry of a step", geometry_sentences, _geometry_charts),
}


def render(diagnosis: Diagnosis) -> str:
    """The page; it fetches nothing."""
    config = diagnosis.conditions.config
    return sections.render(f"Diagnosis of a run on {config.data}{changes(config)}", SECTIONS, diagnosis)
