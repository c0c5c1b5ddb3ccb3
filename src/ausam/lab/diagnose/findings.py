"""Sentences, each computed from the figures: what holds here, what does not, and what cannot be said."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ausam.lab.diagnose.records import (
    Finding,
    GeometryPart,
    HessianPart,
    LandscapePart,
    Lemma1Part,
    SelectionPart,
    SharpnessPart,
    Theorem1Part,
    Theorem2Part,
    Theorem3Part,
    Theorem4At,
    Theorem4Of,
    Theorem4Part,
)

CLOSE = 0.1  # a relative error within which an estimate passes for what it estimates
SMALL = 0.05  # a bias, as part of the gradient, that passes for none


def percent(value: float) -> str:
    """A part in percent."""
    return f"{100 * value:.0f} %" if not abs(value) < 0.0995 else f"{100 * value:.2g} %"


def number(value: float) -> str:
    """A figure with three digits."""
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e9 else f"{value:.3g}"


def of_run(parts: dict[str, Any]) -> tuple[Finding, ...]:
    """The sentences of all parts that were measured."""
    return tuple(f for name, found in parts.items() if found is not None for f in SENTENCES[name](found))


def lemma1(found: Lemma1Part) -> Iterator[Finding]:
    """Whether DLP / rho is the norm of the gradient."""
    end = found.rows[-1]
    errors = [row.norm.relative_error for row in found.rows]
    holds = max(errors) <= CLOSE
    verdict = "the lemma holds here" if holds else "the lemma does not hold here"
    yield Finding(
        "lemma1",
        f"After epoch {end.epoch}, DLP / rho is {percent(end.norm.ratio)} of the gradient norm on average, and over "
        f"training its error is {_span(errors, percent)} of the norm: {verdict} (within {percent(CLOSE)}).",
        holds,
    )
    first_order = [row.projection.relative_error for row in found.rows]
    close = max(first_order) <= CLOSE
    yield Finding(
        "lemma1",
        f"Against the projection on the batch gradient, which is Taylor's first-order term, its error is "
        f"{_span(first_order, percent)} of it: "
        + ("DLP is that projection." if close else "at this rho the curvature counts too."),
    )
    yield Finding(
        "lemma1",
        f"As a ranking of the samples one measurement has a Spearman correlation of {_span(_spearman(found), _two)} "
        f"with the gradient norm, {end.norm.spearman:.2f} after epoch {end.epoch}.",
    )
    if end.average is not None:
        ways = {"mean": end.average.mean, "moving average": end.average.ema, "latest": end.average.last}
        best = max(ways, key=lambda k: _rank(ways[k].spearman))
        text = ", ".join(f"{k} {v.spearman:.2f}" for k, v in ways.items())
        yield Finding(
            "lemma1",
            f"Of the DLP measured at {len(found.rows) - 1} earlier epochs, the {best} ranks the present norms best "
            f"(Spearman: {text}).",
        )
    if end.table is not None:
        better = _rank(end.table.spearman) > _rank(end.norm.spearman)
        yield Finding(
            "lemma1",
            f"The scores that this run sampled by rank them with {end.table.spearman:.2f} after epoch {end.epoch}: "
            f"{'better' if better else 'no better'} than one fresh measurement.",
        )


def theorem1(found: Theorem1Part) -> Iterator[Finding]:
    """Whether the bound holds, and which choice keeps the sharpness."""
    policies = [p.policy for p in found.rows[0].policies]
    rows = {name: [p.summary for row in found.rows for p in row.policies if p.policy == name] for name in policies}
    batches = sum(s.batches for s in rows["AUSampling"])
    fails = sum(round(s.paper_fails_first_order * s.batches) for s in rows["AUSampling"])
    per_policy = ", ".join(
        f"{name} {percent(sum(s.paper_fails_first_order * s.batches for s in of) / sum(s.batches for s in of))}"
        for name, of in rows.items()
    )
    verdict = "the bound holds here" if not fails else "the bound does not hold here"
    yield Finding(
        "theorem1",
        f"The first-order difference exceeds the paper's bound in {fails} of {batches} mini-batches with AUSampling's "
        f"choice: {verdict}. Failures by policy: {per_policy}.",
        not fails,
    )
    broken = max(s.corrected_fails for of in rows.values() for s in of)
    yield Finding(
        "theorem1",
        "The corrected bound holds in every mini-batch."
        if not broken
        else f"The corrected bound fails in up to {percent(broken)} of an epoch's mini-batches: rounding, or an error.",
        not broken,
    )
    differences = {name: _mean([s.difference for s in of]) for name, of in rows.items()}
    best = min(differences, key=lambda k: differences[k])
    text = ", ".join(f"{name} {number(d)}" for name, d in differences.items())
    keeps = best == "AUSampling"
    yield Finding(
        "theorem1",
        f"{best}'s choice keeps the sharpness of its mini-batch best (mean |PTF - PTS| over training: {text}), so "
        f"keeping large gradients {'does' if keeps else 'does not'} keep the sharpness best here.",
        keeps,
    )


def theorem2(found: Theorem2Part) -> Iterator[Finding]:
    """Whether the average may stand in for the present norm."""
    f = found.found
    if f.applies:
        yield Finding(
            "theorem2",
            f"The learning rates fall as 1/t^2, and the largest deviation {number(max(f.largest))} is "
            f"{'within' if f.holds else 'above'} the bound {number(f.paper)}: the theorem "
            f"{'holds' if f.holds else 'does not hold'} here.",
            f.holds,
        )
    else:
        yield Finding(
            "theorem2",
            "The theorem supposes learning rates that fall as 1/t^2. Those of this run do not, so it does not apply.",
        )
    yield Finding(
        "theorem2",
        f"The mean of a sample's gradient norms at the {len(found.epochs) - 1} saved epochs before epoch "
        f"{found.epochs[-1]} is off by {percent(f.relative[-1])} of the present norm on average, and by "
        f"{number(f.largest[-1])} for the worst sample.",
    )
    within = all(d <= b * (1 + 1e-6) for d, b in zip(f.largest, f.path_bound, strict=True))
    yield Finding(
        "theorem2",
        f"The bound from the distances travelled is {number(f.path_bound[-1])} there, "
        f"{_times(f.path_bound[-1], f.largest[-1])} the worst deviation (smoothness estimated from below): it "
        f"{'holds' if within else 'does not hold'} here.",
        within,
    )


def theorem3(found: Theorem3Part) -> Iterator[Finding]:
    """Whether the convergence bound holds on a problem of known constants."""
    for name, holds, bound in (
        ("stated", [f.holds for f in found.found], [f.bounds.paper for f in found.found]),
        ("corrected", [f.corrected_holds for f in found.found], [f.bounds.corrected for f in found.found]),
    ):
        loose = [b / f.left for f, b in zip(found.found, bound, strict=True) if f.left]
        verdict = "it holds here" if all(holds) else "it does not hold here"
        yield Finding(
            "theorem3",
            f"On logistic regression with this run's samples ({found.classes}) the bound as {name} is kept in "
            f"{sum(holds)} of {len(holds)} settings, {_span(loose, number)} times what was measured: "
            f"{verdict}.",
            all(holds),
        )
    yield Finding(
        "theorem3",
        "In the counterexample of docs/theory.md the bound as stated "
        + ("fails, so it is not valid in general." if found.counterexample else "was kept this time."),
        not found.counterexample,
    )


def theorem4(found: Theorem4Part) -> Iterator[Finding]:
    """Whether the bias vanishes."""
    first, end = found.rows[0], found.rows[-1]

    def of(row: Theorem4At, name: str) -> Theorem4Of:
        return next(p for p in row.policies if p.policy == name)

    here = of(end, "AUSampling")
    if first.epoch == end.epoch:
        yield Finding(
            "theorem4",
            f"After epoch {end.epoch} the bias of AUSampling's choice is {percent(here.relative)} of the gradient. One "
            "epoch cannot say whether it vanishes.",
        )
    else:
        then = of(first, "AUSampling")
        vanishes = here.relative <= SMALL or here.relative <= then.relative / 2
        yield Finding(
            "theorem4",
            f"The bias of AUSampling's choice is {percent(then.relative)} of the gradient after epoch {first.epoch} "
            f"and {percent(here.relative)} after epoch {end.epoch}: it {'vanishes' if vanishes else 'does not vanish'} "
            "here.",
            vanishes,
        )
    length = here.cosine
    yield Finding(
        "theorem4",
        f"After epoch {end.epoch} the expected chosen gradient has a cosine of {length:.3f} with the full one, so the "
        f"bias is mostly {'of length' if length > 0.9 else 'of direction as well as length'}.",
    )
    others = ", ".join(
        f"{name} {percent(p.relative)}" + (f" ± {percent(p.error)}" if not p.exact else "")
        for name, p in ((p.policy, p) for p in end.policies)
        if name != "AUSampling"
    )
    yield Finding("theorem4", f"The bias of other choices after epoch {end.epoch}: {others}.")
    rows = [of(row, "AUSampling") for row in found.rows]
    kept, right = _mean([r.paper_holds for r in rows]), min(r.corrected_holds for r in rows)
    yield Finding(
        "theorem4",
        f"The theorem's bound is kept in {percent(kept)} of AUSampling's mini-batches: it "
        f"{'holds' if kept == 1 else 'does not hold'} here. The corrected one is kept in "
        + ("all." if right == 1 else f"as few as {percent(right)} at an epoch."),
        kept == 1,
    )


def hessian(found: HessianPart) -> Iterator[Finding]:
    """How curved the minimum is."""
    e, t = found.eigenvalues, found.trace
    sure = "" if e.converged else " The search has not converged: they are lower bounds of what is there."
    yield Finding(
        "hessian",
        f"The largest eigenvalues of the Hessian are {', '.join(number(v) for v in e.values)}; its trace is "
        f"{number(t.value)} ± {number(t.error)}.{sure}",
    )
    if t.value > 0 and e.values[0] > 0:
        part = sum(v for v in e.values if v > 0) / t.value
        yield Finding("hessian", f"These {len(e.values)} directions hold {percent(part)} of the trace.")


def sharpness(found: SharpnessPart) -> Iterator[Finding]:
    """How far the loss rises nearby."""
    middle = len(found.whole.rho) // 2
    rho, worst, average = (v[middle] for v in (found.whole.rho, found.whole.worst, found.whole.average))
    yield Finding(
        "sharpness",
        f"Within rho = {number(rho)} the loss rises by at most {number(worst)} from {number(found.whole.loss)} (as far "
        f"as ascent finds it), and by {number(average)} in a random direction.",
    )
    if worst > 0:
        yield Finding(
            "sharpness",
            f"With a worst point of its own for each group of {found.groups.m} samples, as in training, it rises by "
            f"{number(found.groups.worst[middle])}, {_times(found.groups.worst[middle], worst)} as much."
            + (" It cannot be less, so the ascent missed some." if found.groups.worst[middle] < worst else ""),
        )
        low, high = found.whole.worst[middle - 1], found.whole.worst[middle]
        if low > 0:
            power = math.log(high / low) / math.log(found.whole.rho[middle] / found.whole.rho[middle - 1])
            shape = "closer to a slope (1)" if power < 1.5 else "closer to a bowl (2)"
            yield Finding(
                "sharpness", f"Up to rho the worst rise grows with the power {power:.1f} of the radius: {shape}."
            )


def landscape(found: LandscapePart) -> Iterator[Finding]:
    """What the slices show."""
    here = found.line.loss[len(found.line.loss) // 2]
    lowest = min(found.line.loss)
    yield Finding(
        "landscape",
        f"Along a random direction the loss rises from {number(here)} to {number(max(found.line.loss))} where each "
        f"filter has moved by its own length; the weights are "
        f"{'the lowest point' if here <= lowest else 'not the lowest point'} of that line.",
    )
    if found.between is not None:
        inside = found.between.loss
        bump = max(inside) - max(inside[0], inside[-1])
        what = f"over a bump of {number(bump)}" if bump > 1e-6 * abs(inside[0]) else "without a bump"
        start = f"epoch {found.since}" if found.since else "the initial weights"
        yield Finding(
            "landscape",
            f"On the straight line from {start} to the last weights the loss goes from {number(inside[0])} to "
            f"{number(inside[-1])}, {what}.",
        )


def geometry(found: GeometryPart) -> Iterator[Finding]:
    """How SAM's step lies to the plain one."""
    cosines, descents = [r.step.cosine for r in found.rows], [r.step.descent for r in found.rows]
    yield Finding(
        "geometry",
        f"The cosine between SAM's gradient and the plain one is {_span(cosines, _two)} over training, and SAM's step "
        f"makes {_span(descents, _two)} times the plain step's first-order decrease of the loss.",
    )


def selection(found: SelectionPart) -> Iterator[Finding]:
    """Who was chosen."""
    what = "scored visits" if found.scored else "visits"
    yield Finding(
        "selection",
        f"In {found.epochs} epochs a sample had {found.mean:.1f} {what} on average, the least favoured {found.fewest} "
        f"and the most favoured {found.most}; {found.never} had none. The effective sample size is "
        f"{percent(found.effective)} of the data.",
    )
    if found.worst_gap is not None:
        one = "epoch" if found.period == 1 else f"period of {found.period} epochs"
        many = "epochs" if found.period == 1 else f"periods of {found.period} epochs"
        how_many = f"{found.worst_gap} {one if found.worst_gap == 1 else many}"
        yield Finding(
            "selection",
            f"The longest time without a visit was {how_many}."
            if found.worst_gap
            else f"Every sample was visited in every {one}.",
        )
    labels = {g.name: g for g in found.groups.get("label", ())}
    if len(labels) == 2 and labels["clean"].visits:
        ratio = labels["wrong"].visits / labels["clean"].visits
        prefers = "prefers" if ratio > 1.05 else "avoids" if ratio < 0.95 else "neither prefers nor avoids"
        yield Finding(
            "selection",
            f"A sample with a wrong label was visited {ratio:.2f} times as often as one with a right label: the run "
            f"{prefers} wrong labels.",
        )
    scores = found.groups.get("score", ())
    if len(scores) > 1 and scores[0].visits:
        yield Finding(
            "selection",
            f"The fifth of the samples with the highest scores had {scores[-1].visits / scores[0].visits:.2f} times "
            "the visits of the fifth with the lowest.",
        )


SENTENCES: dict[str, Callable[[Any], Iterator[Finding]]] = {
    "lemma1": lemma1,
    "theorem1": theorem1,
    "theorem2": theorem2,
    "theorem3": theorem3,
    "theorem4": theorem4,
    "hessian": hessian,
    "sharpness": sharpness,
    "landscape": landscape,
    "geometry": geometry,
    "selection": selection,
}


def _span(values: Sequence[float], text: Callable[[float], str]) -> str:
    known = [v for v in values if not math.isnan(v)]
    if not known:
        return "unknown"
    low, high = text(min(known)), text(max(known))
    return low if low == high else f"{low} to {high}"


def _times(a: float, b: float) -> str:
    return f"{number(a / b)} times" if b else "infinitely many times"


def _two(value: float) -> str:
    return f"{value:.2f}"


def _rank(value: float) -> float:
    return -2.0 if math.isnan(value) else value


def _spearman(found: Lemma1Part) -> list[float]:
    return [row.norm.spearman for row in found.rows]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
