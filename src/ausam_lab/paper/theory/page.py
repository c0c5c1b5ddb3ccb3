"""The page of the paper's theory on a run, theory.html: where the lemma and the theorems hold, and where not.

A measurement has its result and its section here; :mod:`ausam_lab.paper.theory.on_a_run` makes the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ausam.diagnostics import Agreement
from ausam_lab.data.catalogue import changes
from ausam_lab.paper.theory.lemma1 import AverageDLP
from ausam_lab.paper.theory.theorem1 import Theorem1Summary
from ausam_lab.paper.theory.theorem2 import Theorem2
from ausam_lab.paper.theory.theorem3 import Theorem3
from ausam_lab.report import charts
from ausam_lab.report.charts import Picture
from ausam_lab.report.pages import sections
from ausam_lab.report.pages.sections import EPOCH, Finding, Measurements, ResultSection, curves
from ausam_lab.report.text import number, percent, span, times
from ausam_lab.report.vega import Field

CLOSE = 0.1  # relative error up to which an estimate counts as accurate
SMALL = 0.05  # bias, relative to the gradient, up to which it counts as zero


# -- the results -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lemma1At:
    """Lemma 1 after an epoch: per-sample figures in the order of the samples, and the run's own scores."""

    epoch: int
    norm: Agreement
    projection: Agreement
    cosine: float
    dlp: tuple[float, ...]  # divided by rho
    norms: tuple[float, ...]
    projections: tuple[float, ...]
    table: Agreement | None  # the run's scores against the norms, if its policy ranks by sharpness


@dataclass(frozen=True)
class Lemma1Row:
    """Lemma 1 after an epoch; ``average`` covers the DLP measured at earlier epochs, if any."""

    epoch: int
    norm: Agreement
    projection: Agreement
    cosine: float
    table: Agreement | None
    average: AverageDLP | None


@dataclass(frozen=True)
class Point:
    """One sample: DLP / rho, gradient norm and projection."""

    dlp: float
    norm: float
    projection: float


@dataclass(frozen=True)
class Lemma1Result:
    """Lemma 1 over training, and individual samples at the end."""

    rows: tuple[Lemma1Row, ...]
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Theorem1Of:
    """Theorem 1 for the samples that one policy keeps."""

    policy: str
    summary: Theorem1Summary


@dataclass(frozen=True)
class Theorem1At:
    """Theorem 1 after an epoch, over the mini-batches."""

    epoch: int
    policies: tuple[Theorem1Of, ...]


@dataclass(frozen=True)
class Theorem1Result:
    """Theorem 1 over training."""

    rows: tuple[Theorem1At, ...]


@dataclass(frozen=True)
class Theorem2Result:
    """Theorem 2 over the checkpoints of ``epochs``."""

    epochs: tuple[int, ...]
    found: Theorem2


@dataclass(frozen=True)
class Theorem3Result:
    """Theorem 3 for logistic regression on the samples of the run."""

    classes: str
    found: tuple[Theorem3, ...]


@dataclass(frozen=True)
class Theorem4Of:
    """The bias of one policy: means over mini-batches; ``*_holds`` is the fraction in which a bound holds."""

    policy: str
    exact: bool
    batches: int
    gradient_norm: float
    bias: float
    relative: float
    error: float  # standard error of ``relative``; 0 if exact
    cosine: float
    gap: float
    paper: float
    corrected: float
    paper_holds: float
    corrected_holds: float


@dataclass(frozen=True)
class Theorem4At:
    """Theorem 4 after an epoch."""

    epoch: int
    policies: tuple[Theorem4Of, ...]


@dataclass(frozen=True)
class Theorem4Result:
    """Theorem 4 over training."""

    rows: tuple[Theorem4At, ...]


@dataclass(frozen=True)
class Theory(Measurements):
    """The lemma and the theorems on one run."""

    FORMAT = "theory"

    lemma1: Lemma1Result | None = None
    theorem1: Theorem1Result | None = None
    theorem2: Theorem2Result | None = None
    theorem3: Theorem3Result | None = None
    theorem4: Theorem4Result | None = None


# -- what they say -----------------------------------------------------------------------------------------------------


def lemma1_sentences(result: Lemma1Result) -> Iterator[Finding]:
    """Whether DLP / rho is the norm of the gradient."""
    end = result.rows[-1]
    errors = [row.norm.relative_error for row in result.rows]
    holds = max(errors) <= CLOSE
    yield Finding(
        f"After epoch {end.epoch}, DLP / rho is on average {percent(end.norm.ratio)} of the gradient norm. Over "
        f"training its error is {span(errors, percent)} of the norm; up to {percent(CLOSE)} would count as accurate.",
        holds,
    )
    first_order = [row.projection.relative_error for row in result.rows]
    close = max(first_order) <= CLOSE
    yield Finding(
        f"Compared with the projection on the batch gradient (the first-order Taylor term), its error is "
        f"{span(first_order, percent)}: "
        + ("DLP measures that projection." if close else "at this rho, curvature contributes as well."),
    )
    yield Finding(
        f"Used as a ranking, one measurement of DLP has a Spearman correlation of {span(_spearman(result), _two)} with "
        f"the gradient norm ({end.norm.spearman:.2f} after epoch {end.epoch}).",
    )
    if end.average is not None:
        ways = {"mean": end.average.mean, "moving average": end.average.ema, "latest": end.average.last}
        best = max(ways, key=lambda k: _rank(ways[k].spearman))
        text = ", ".join(f"{k} {v.spearman:.2f}" for k, v in ways.items())
        yield Finding(
            f"Averaging DLP over {len(result.rows) - 1} earlier epochs, the {best} ranks the current norms best "
            f"(Spearman: {text}).",
        )
    if end.table is not None:
        better = _rank(end.table.spearman) > _rank(end.norm.spearman)
        yield Finding(
            f"The scores that this run used for sampling rank them with {end.table.spearman:.2f} after epoch "
            f"{end.epoch}, {'better' if better else 'no better'} than one fresh measurement.",
        )


def theorem1_sentences(result: Theorem1Result) -> Iterator[Finding]:
    """Whether the bound holds, and which selection preserves the sharpness."""
    policies = [p.policy for p in result.rows[0].policies]
    rows = {name: [p.summary for row in result.rows for p in row.policies if p.policy == name] for name in policies}
    batches = sum(s.batches for s in rows["AUSampling"])
    fails = sum(round(s.paper_fails_first_order * s.batches) for s in rows["AUSampling"])
    per_policy = ", ".join(
        f"{name} {percent(sum(s.paper_fails_first_order * s.batches for s in of) / sum(s.batches for s in of))}"
        for name, of in rows.items()
    )
    yield Finding(
        f"With AUSampling's selection, the first-order difference exceeds the paper's bound in {fails} of {batches} "
        f"mini-batches. Failures by policy: {per_policy}.",
        not fails,
    )
    broken = max(s.corrected_fails for of in rows.values() for s in of)
    yield Finding(
        "The corrected bound holds in every mini-batch."
        if not broken
        else f"The corrected bound fails in up to {percent(broken)} of an epoch's mini-batches. It is proved, so this "
        "is rounding or a bug.",
        not broken,
    )
    differences = {name: _mean([s.difference for s in of]) for name, of in rows.items()}
    best = min(differences, key=lambda k: differences[k])
    text = ", ".join(f"{name} {number(d)}" for name, d in differences.items())
    keeps = best == "AUSampling"
    yield Finding(
        f"{best} preserves the sharpness of the mini-batch best (mean |PTF - PTS| over training: {text}). Keeping "
        f"large gradients is {'' if keeps else 'not '}the best choice here.",
        keeps,
    )


def theorem2_sentences(result: Theorem2Result) -> Iterator[Finding]:
    """Whether the average approximates the current norm."""
    f = result.found
    if f.applies:
        yield Finding(
            f"The learning rates fall as 1/t^2, as the theorem assumes. The largest deviation is "
            f"{number(max(f.largest))}, {'within' if f.holds else 'above'} the bound of {number(f.paper)}.",
            f.holds,
        )
    else:
        yield Finding(
            "The theorem assumes learning rates that fall as 1/t^2. Those of this run do not, so it does not apply.",
        )
    yield Finding(
        f"The mean of a sample's gradient norms over {len(result.epochs) - 1} saved epochs differs from its norm after "
        f"epoch {result.epochs[-1]} by {percent(f.relative[-1])} on average, and by {number(f.largest[-1])} for the "
        "worst sample.",
    )
    within = all(d <= b * (1 + 1e-6) for d, b in zip(f.largest, f.path_bound, strict=True))
    yield Finding(
        f"The bound from the distances between checkpoints is {number(f.path_bound[-1])} there, "
        f"{times(f.path_bound[-1], f.largest[-1])} the worst deviation (smoothness estimated from below).",
        within,
    )


def theorem3_sentences(result: Theorem3Result) -> Iterator[Finding]:
    """Whether the convergence bound holds on a problem with known constants."""
    for name, holds, bound in (
        ("stated", [f.holds for f in result.found], [f.bounds.paper for f in result.found]),
        ("corrected", [f.corrected_holds for f in result.found], [f.bounds.corrected for f in result.found]),
    ):
        loose = [b / f.left for f, b in zip(result.found, bound, strict=True) if f.left]
        yield Finding(
            f"On logistic regression with this run's samples ({result.classes}), the {name} bound holds in "
            f"{sum(holds)} of {len(holds)} settings. It is {span(loose, number)} times the measured value.",
            all(holds),
        )


def theorem4_sentences(result: Theorem4Result) -> Iterator[Finding]:
    """Whether the bias vanishes."""
    first, end = result.rows[0], result.rows[-1]

    def of(row: Theorem4At, name: str) -> Theorem4Of:
        return next(p for p in row.policies if p.policy == name)

    here = of(end, "AUSampling")
    if first.epoch == end.epoch:
        yield Finding(
            f"After epoch {end.epoch}, the bias of AUSampling's selection is {percent(here.relative)} of the gradient. "
            "One epoch cannot show whether it vanishes.",
        )
    else:
        then = of(first, "AUSampling")
        vanishes = here.relative <= SMALL or here.relative <= then.relative / 2
        yield Finding(
            f"The bias of AUSampling's selection is {percent(then.relative)} of the gradient after epoch {first.epoch} "
            f"and {percent(here.relative)} after epoch {end.epoch}: it "
            f"{'vanishes' if vanishes else 'does not vanish'}.",
            vanishes,
        )
    length = here.cosine
    yield Finding(
        f"After epoch {end.epoch}, the expected gradient of the selected samples has a cosine of {length:.3f} with the "
        f"full gradient: the bias is {'mostly in length' if length > 0.9 else 'in direction as well as in length'}.",
    )
    others = ", ".join(
        f"{policy_name(name)} {percent(p.relative)}" + (f" ± {percent(p.error)}" if not p.exact else "")
        for name, p in ((p.policy, p) for p in end.policies)
        if name != "AUSampling"
    )
    yield Finding(f"Bias of other policies after epoch {end.epoch}: {others}.")
    rows = [of(row, "AUSampling") for row in result.rows]
    kept, right = _mean([r.paper_holds for r in rows]), min(r.corrected_holds for r in rows)
    yield Finding(
        f"The theorem's bound holds in {percent(kept)} of AUSampling's mini-batches. The corrected bound holds in "
        + ("all of them." if right == 1 else f"as few as {percent(right)} at one epoch."),
        kept == 1,
    )


def policy_name(policy: str) -> str:
    """How a policy is written."""
    return "AUSampling(unbiased=True)" if policy == "unbiased" else policy


def _two(value: float) -> str:
    return f"{value:.2f}"


def _rank(value: float) -> float:
    return -2.0 if math.isnan(value) else value


def _spearman(result: Lemma1Result) -> list[float]:
    return [row.norm.spearman for row in result.rows]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# -- what they show ----------------------------------------------------------------------------------------------------


def _lemma1_charts(result: Lemma1Result) -> Iterator[Picture]:
    if len(result.rows) > 1:
        errors = [(row.epoch, row.norm.relative_error, "against the norm") for row in result.rows]
        errors += [(row.epoch, row.projection.relative_error, "against the projection") for row in result.rows]
        yield curves("Error of DLP / rho over training", EPOCH, "relative error", errors, y_from=0.0)
        ranks = [(row.epoch, row.norm.spearman, "one measurement") for row in result.rows]
        for row in result.rows:
            if row.average is not None:
                ranks.append((row.epoch, row.average.mean.spearman, "mean of earlier epochs"))
                ranks.append((row.epoch, row.average.ema.spearman, "moving average of earlier epochs"))
            if row.table is not None:
                ranks.append((row.epoch, row.table.spearman, "the run's own scores"))
        yield curves("How well DLP ranks the samples", EPOCH, "Spearman correlation with the norm", ranks)
    rows = [{"x": point.norm, "y": point.dlp} for point in result.points]
    spec = charts.diagonal(rows, Field("x", "gradient norm", ".3~g"), Field("y", "DLP / rho", ".3~g"))
    note = f"{len(rows)} samples after epoch {result.rows[-1].epoch}. The lemma is exact on the dashed line."
    yield Picture("dlp", spec, "DLP against the norm", note)


def _theorem1_charts(result: Theorem1Result) -> Iterator[Picture]:
    of = [(row.epoch, p.policy, p.summary) for row in result.rows for p in row.policies]
    if len(result.rows) > 1 and any(s.paper_fails_first_order for _, _, s in of):
        points = [(epoch, s.paper_fails_first_order, policy) for epoch, policy, s in of]
        part = "fraction of the mini-batches"
        yield curves("Where the paper's bound fails", EPOCH, part, points, y_from=0.0, y_to=1.0)
    points = [(epoch, s.difference, policy) for epoch, policy, s in of]
    yield curves("How far the sharpness of the kept samples is off", EPOCH, "|PTF - PTS|", points, y_from=0.0)


def _theorem2_charts(result: Theorem2Result) -> Iterator[Picture]:
    f = result.found
    columns = {"mean deviation": f.mean, "worst deviation": f.largest, "bound from distances": f.path_bound}
    points = [(e, v, name) for name, of in columns.items() for e, v in zip(result.epochs[1:], of, strict=True)]
    title = "Deviation of past averages from the current norm"
    yield curves(title, EPOCH, "deviation from the current norm", points, log="y")


def _theorem3_charts(result: Theorem3Result) -> Iterator[Picture]:
    points = [(f.alpha, f.bounds.paper / f.left, f"{f.selection}, eta {f.eta:.2g}") for f in result.found if f.left]
    note = "Below 1 the bound fails. The proof assumes random draws."
    yield curves("How loose the bound is", Field("x", "alpha"), "stated bound / measured", points, note, log="xy")


def _theorem4_charts(result: Theorem4Result) -> Iterator[Picture]:
    if len(result.rows) > 1:
        points = [(row.epoch, p.relative, policy_name(p.policy)) for row in result.rows for p in row.policies]
        yield curves("Bias over training", EPOCH, "bias relative to the gradient", points, y_from=0.0)


SECTIONS = {
    "lemma1": ResultSection(
        "Lemma 1: is DLP the gradient norm?",
        lemma1_sentences,
        _lemma1_charts,
        "The paper's claim: a sample's loss change under SAM's perturbation (DLP), divided by rho, approximates its "
        "gradient norm.",
    ),
    "theorem1": ResultSection(
        "Theorem 1: does part of a batch preserve its sharpness?",
        theorem1_sentences,
        _theorem1_charts,
        "The paper's claim: the sharpness of the batch (PTF) and of the kept samples (PTS) differ by at most rho times "
        "the mean gradient norm of the samples left out, so leave out small gradients.",
    ),
    "theorem2": ResultSection(
        "Theorem 2: does the average approximate the current norm?",
        theorem2_sentences,
        _theorem2_charts,
        "The paper's claim: with learning rates 1/t², the mean gradient norm of past epochs stays close to the current "
        "one.",
    ),
    "theorem3": ResultSection(
        "Theorem 3: convergence",
        theorem3_sentences,
        _theorem3_charts,
        "The paper's claim: SAM on part of each batch converges, at a stated rate.",
    ),
    "theorem4": ResultSection(
        "Theorem 4: does the bias of the selection vanish?",
        theorem4_sentences,
        _theorem4_charts,
        "The paper's claim: the bias of the selection goes to zero during training (asymptotically unbiased).",
    ),
}


def render(theory: Theory) -> str:
    """The page; it fetches nothing."""
    claims = [finding.holds for finding in theory.findings if finding.holds is not None]
    lead = f"{sum(claims)} of the {len(claims)} claims that can be tested hold here." if claims else ""
    config = theory.conditions.config
    return sections.render(f"The paper's theory on a run on {config.data}{changes(config)}", SECTIONS, theory, lead)
