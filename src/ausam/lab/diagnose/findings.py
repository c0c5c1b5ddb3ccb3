"""Findings as sentences, computed from the figures: what holds, what does not, and what cannot be decided."""

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

CLOSE = 0.1  # relative error up to which an estimate counts as accurate
SMALL = 0.05  # bias, relative to the gradient, up to which it counts as zero


def percent(value: float) -> str:
    """A fraction in percent."""
    return f"{100 * value:.0f} %" if not abs(value) < 0.0995 else f"{100 * value:.2g} %"


def number(value: float) -> str:
    """A figure with three significant digits."""
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e9 else f"{value:.3g}"


def named(policy: str) -> str:
    """How a policy is written."""
    return "AUSampling(unbiased=True)" if policy == "unbiased" else policy


def of_run(parts: dict[str, Any]) -> tuple[Finding, ...]:
    """The findings of all measured parts."""
    return tuple(f for name, found in parts.items() if found is not None for f in SENTENCES[name](found))


def lemma1(found: Lemma1Part) -> Iterator[Finding]:
    """Whether DLP / rho is the norm of the gradient."""
    end = found.rows[-1]
    errors = [row.norm.relative_error for row in found.rows]
    holds = max(errors) <= CLOSE
    yield Finding(
        "lemma1",
        f"After epoch {end.epoch}, DLP / rho is on average {percent(end.norm.ratio)} of the gradient norm. Over "
        f"training its error is {_span(errors, percent)} of the norm; up to {percent(CLOSE)} would count as accurate.",
        holds,
    )
    first_order = [row.projection.relative_error for row in found.rows]
    close = max(first_order) <= CLOSE
    yield Finding(
        "lemma1",
        f"Compared with the projection on the batch gradient (the first-order Taylor term), its error is "
        f"{_span(first_order, percent)}: "
        + ("DLP measures that projection." if close else "at this rho, curvature contributes as well."),
    )
    yield Finding(
        "lemma1",
        f"Used as a ranking, one measurement of DLP has a Spearman correlation of {_span(_spearman(found), _two)} with "
        f"the gradient norm ({end.norm.spearman:.2f} after epoch {end.epoch}).",
    )
    if end.average is not None:
        ways = {"mean": end.average.mean, "moving average": end.average.ema, "latest": end.average.last}
        best = max(ways, key=lambda k: _rank(ways[k].spearman))
        text = ", ".join(f"{k} {v.spearman:.2f}" for k, v in ways.items())
        yield Finding(
            "lemma1",
            f"Averaging DLP over {len(found.rows) - 1} earlier epochs, the {best} ranks the current norms best "
            f"(Spearman: {text}).",
        )
    if end.table is not None:
        better = _rank(end.table.spearman) > _rank(end.norm.spearman)
        yield Finding(
            "lemma1",
            f"The scores that this run used for sampling rank them with {end.table.spearman:.2f} after epoch "
            f"{end.epoch}, {'better' if better else 'no better'} than one fresh measurement.",
        )


def theorem1(found: Theorem1Part) -> Iterator[Finding]:
    """Whether the bound holds, and which selection preserves the sharpness."""
    policies = [p.policy for p in found.rows[0].policies]
    rows = {name: [p.summary for row in found.rows for p in row.policies if p.policy == name] for name in policies}
    batches = sum(s.batches for s in rows["AUSampling"])
    fails = sum(round(s.paper_fails_first_order * s.batches) for s in rows["AUSampling"])
    per_policy = ", ".join(
        f"{name} {percent(sum(s.paper_fails_first_order * s.batches for s in of) / sum(s.batches for s in of))}"
        for name, of in rows.items()
    )
    yield Finding(
        "theorem1",
        f"With AUSampling's selection, the first-order difference exceeds the paper's bound in {fails} of {batches} "
        f"mini-batches. Failures by policy: {per_policy}.",
        not fails,
    )
    broken = max(s.corrected_fails for of in rows.values() for s in of)
    yield Finding(
        "theorem1",
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
        "theorem1",
        f"{best} preserves the sharpness of the mini-batch best (mean |PTF - PTS| over training: {text}). Keeping "
        f"large gradients is {'' if keeps else 'not '}the best choice here.",
        keeps,
    )


def theorem2(found: Theorem2Part) -> Iterator[Finding]:
    """Whether the average approximates the current norm."""
    f = found.found
    if f.applies:
        yield Finding(
            "theorem2",
            f"The learning rates fall as 1/t^2, as the theorem assumes. The largest deviation is "
            f"{number(max(f.largest))}, {'within' if f.holds else 'above'} the bound of {number(f.paper)}.",
            f.holds,
        )
    else:
        yield Finding(
            "theorem2",
            "The theorem assumes learning rates that fall as 1/t^2. Those of this run do not, so it does not apply.",
        )
    yield Finding(
        "theorem2",
        f"The mean of a sample's gradient norms over {len(found.epochs) - 1} saved epochs differs from its norm after "
        f"epoch {found.epochs[-1]} by {percent(f.relative[-1])} on average, and by {number(f.largest[-1])} for the "
        "worst sample.",
    )
    within = all(d <= b * (1 + 1e-6) for d, b in zip(f.largest, f.path_bound, strict=True))
    yield Finding(
        "theorem2",
        f"The bound from the distances between checkpoints is {number(f.path_bound[-1])} there, "
        f"{_times(f.path_bound[-1], f.largest[-1])} the worst deviation (smoothness estimated from below).",
        within,
    )


def theorem3(found: Theorem3Part) -> Iterator[Finding]:
    """Whether the convergence bound holds on a problem with known constants."""
    for name, holds, bound in (
        ("stated", [f.holds for f in found.found], [f.bounds.paper for f in found.found]),
        ("corrected", [f.corrected_holds for f in found.found], [f.bounds.corrected for f in found.found]),
    ):
        loose = [b / f.left for f, b in zip(found.found, bound, strict=True) if f.left]
        yield Finding(
            "theorem3",
            f"On logistic regression with this run's samples ({found.classes}), the {name} bound holds in {sum(holds)} "
            f"of {len(holds)} settings. It is {_span(loose, number)} times the measured value.",
            all(holds),
        )
    yield Finding(
        "theorem3",
        "In the counterexample of docs/theory.md, the stated bound "
        + ("fails, so it is not valid in general." if found.counterexample else "holds."),
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
            f"After epoch {end.epoch}, the bias of AUSampling's selection is {percent(here.relative)} of the gradient. "
            "One epoch cannot show whether it vanishes.",
        )
    else:
        then = of(first, "AUSampling")
        vanishes = here.relative <= SMALL or here.relative <= then.relative / 2
        yield Finding(
            "theorem4",
            f"The bias of AUSampling's selection is {percent(then.relative)} of the gradient after epoch {first.epoch} "
            f"and {percent(here.relative)} after epoch {end.epoch}: it "
            f"{'vanishes' if vanishes else 'does not vanish'}.",
            vanishes,
        )
    length = here.cosine
    yield Finding(
        "theorem4",
        f"After epoch {end.epoch}, the expected gradient of the selected samples has a cosine of {length:.3f} with the "
        f"full gradient: the bias is {'mostly in length' if length > 0.9 else 'in direction as well as in length'}.",
    )
    others = ", ".join(
        f"{named(name)} {percent(p.relative)}" + (f" ± {percent(p.error)}" if not p.exact else "")
        for name, p in ((p.policy, p) for p in end.policies)
        if name != "AUSampling"
    )
    yield Finding("theorem4", f"Bias of other policies after epoch {end.epoch}: {others}.")
    rows = [of(row, "AUSampling") for row in found.rows]
    kept, right = _mean([r.paper_holds for r in rows]), min(r.corrected_holds for r in rows)
    yield Finding(
        "theorem4",
        f"The theorem's bound holds in {percent(kept)} of AUSampling's mini-batches. The corrected bound holds in "
        + ("all of them." if right == 1 else f"as few as {percent(right)} at one epoch."),
        kept == 1,
    )


def hessian(found: HessianPart) -> Iterator[Finding]:
    """How curved the minimum is."""
    e, t = found.eigenvalues, found.trace
    sure = "" if e.converged else " The search has not converged, so these are lower bounds."
    yield Finding(
        "hessian",
        f"The largest eigenvalues of the Hessian are {', '.join(number(v) for v in e.values)}; its trace is "
        f"{number(t.value)} ± {number(t.error)}.{sure}",
    )
    if t.value > 0 and e.values[0] > 0:
        part = sum(v for v in e.values if v > 0) / t.value
        yield Finding("hessian", f"These {len(e.values)} directions account for {percent(part)} of the trace.")


def sharpness(found: SharpnessPart) -> Iterator[Finding]:
    """How much the loss rises near the last weights."""
    middle = len(found.whole.rho) // 2
    rho, worst, average = (v[middle] for v in (found.whole.rho, found.whole.worst, found.whole.average))
    yield Finding(
        "sharpness",
        f"Within rho = {number(rho)}, the loss rises from {number(found.whole.loss)} by up to {number(worst)} at the "
        f"worst point that ascent finds, and by {number(average)} in a random direction.",
    )
    if worst > 0:
        yield Finding(
            "sharpness",
            f"If each group of {found.groups.m} samples has its own worst point, as in training, it rises by "
            f"{number(found.groups.worst[middle])}, {_times(found.groups.worst[middle], worst)} as much."
            + (" It cannot be less: the ascent missed some points." if found.groups.worst[middle] < worst else ""),
        )
        low, high = found.whole.worst[middle - 1], found.whole.worst[middle]
        if low > 0:
            power = math.log(high / low) / math.log(found.whole.rho[middle] / found.whole.rho[middle - 1])
            shape = "closer to a slope (1)" if power < 1.5 else "closer to a bowl (2)"
            yield Finding(
                "sharpness", f"Up to rho, the worst rise grows as the radius to the power {power:.1f}: {shape}."
            )


def landscape(found: LandscapePart) -> Iterator[Finding]:
    """What the slices show."""
    here = found.line.loss[len(found.line.loss) // 2]
    lowest = min(found.line.loss)
    yield Finding(
        "landscape",
        f"Along a random direction, the loss rises from {number(here)} to {number(max(found.line.loss))} when every "
        f"filter has moved by its own norm. The weights are {'' if here <= lowest else 'not '}the lowest point of that "
        "line.",
    )
    if found.between is not None:
        inside = found.between.loss
        bump = max(inside) - max(inside[0], inside[-1])
        what = f"over a barrier of {number(bump)}" if bump > 1e-6 * abs(inside[0]) else "without a barrier"
        start = f"epoch {found.since}" if found.since else "the initial weights"
        yield Finding(
            "landscape",
            f"On the straight line from {start} to the last weights, the loss goes from {number(inside[0])} to "
            f"{number(inside[-1])} {what}.",
        )


def geometry(found: GeometryPart) -> Iterator[Finding]:
    """How SAM's step relates to the plain one."""
    cosines, descents = [r.step.cosine for r in found.rows], [r.step.descent for r in found.rows]
    yield Finding(
        "geometry",
        f"Over training, the cosine between SAM's gradient and the plain one is {_span(cosines, _two)}. To first "
        f"order, SAM's step lowers the loss {_span(descents, _two)} times as much as the plain step.",
    )


def selection(found: SelectionPart) -> Iterator[Finding]:
    """Which samples were selected."""
    what = "scored visits" if found.scored else "visits"
    yield Finding(
        "selection",
        f"In {found.epochs} epochs, a sample had {found.mean:.1f} {what} on average, between {found.fewest} and "
        f"{found.most}; {found.never} samples had none. The effective sample size is {percent(found.effective)} of the "
        "data.",
    )
    if found.worst_gap is not None:
        one = "epoch" if found.period == 1 else f"period of {found.period} epochs"
        many = "epochs" if found.period == 1 else f"periods of {found.period} epochs"
        how_many = f"{found.worst_gap} {one if found.worst_gap == 1 else many}"
        yield Finding(
            "selection",
            f"The longest gap without a visit was {how_many}."
            if found.worst_gap
            else f"Every sample was visited in every {one}.",
        )
    labels = {g.name: g for g in found.groups.get("label", ())}
    if len(labels) == 2 and labels["clean"].visits:
        ratio = labels["wrong"].visits / labels["clean"].visits
        prefers = "prefers" if ratio > 1.05 else "avoids" if ratio < 0.95 else "neither prefers nor avoids"
        yield Finding(
            "selection",
            f"Samples with a wrong label were visited {ratio:.2f} times as often as samples with a correct label: the "
            f"run {prefers} wrong labels.",
        )
    scores = found.groups.get("score", ())
    if len(scores) > 1 and scores[0].visits:
        yield Finding(
            "selection",
            f"The 20 % of samples with the highest scores had {scores[-1].visits / scores[0].visits:.2f} times as many "
            "visits as the 20 % with the lowest.",
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
