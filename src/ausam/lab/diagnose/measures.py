"""The measurements of a diagnosis: each is a pure function of the run, or of the run and an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch

from ausam import diagnostics as dg
from ausam.common.random import generator
from ausam.diagnostics.statistics import numbers
from ausam.diagnostics.untouched import untouched
from ausam.lab.diagnose.records import (
    Fit,
    GeometryAt,
    HessianPart,
    Lemma1At,
    SelectionPart,
    SharpnessPart,
    Theorem1At,
    Theorem1Of,
    Theorem2Part,
    Theorem3Part,
    Theorem4At,
    Theorem4Of,
)
from ausam.lab.diagnose.subject import WATCHED, Subject
from ausam.lab.training.schedule import learning_rate
from ausam.paper import theory
from ausam.policies.signals import AT_PERTURBED_WEIGHTS, signal_name

RADII = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the run's rho
THEOREM2_SAMPLES = 256
THEOREM4_SAMPLES, THEOREM4_SIZE = 256, 128  # the memory of inclusion probabilities grows with the square of the batch
BASIS = 2**28  # numbers that the eigenvalue search may store: 1 GB


def lemma1(subject: Subject, epoch: int) -> Lemma1At:
    """Compare DLP with norm and projection, in mini-batches shuffled for this epoch."""
    subject.at(epoch)
    dealt = subject.dealt(epoch)
    batches = [(subject.x[p], subject.y[p]) for p in dealt]
    found = theory.lemma1(subject.model, subject.losses, batches, subject.rho, chunk=subject.chunk)
    place = torch.cat(dealt).argsort()
    dlp, norms, projections = (torch.tensor(v, dtype=torch.float64)[place] for v in _columns(found))
    known = (
        subject.scores(epoch).of(subject.index).double() / subject.rho if epoch and subject.ranks_sharpness else None
    )
    table = None if known is None or bool(known.isnan().all()) else dg.agreement(known, norms)
    columns = (numbers(dlp), numbers(norms), numbers(projections))
    return Lemma1At(epoch, found.norm, found.projection, found.cosine, *columns, table)


def _columns(found: theory.Lemma1) -> tuple[tuple[float, ...], ...]:
    return found.dlp, found.norms, found.projections


def theorem1(subject: Subject, epoch: int) -> Theorem1At:
    """The sharpness of mini-batches, and of the part that each policy would keep."""
    subject.at(epoch)
    rows = []
    for name, (policy, scores) in subject.policies(epoch).items():
        found = []
        for b, (x, y, place) in enumerate(subject.batches()):
            kept, _ = policy.choose(scores, epoch, place[None], generator(0x7E01, epoch, b))
            found.append(
                theory.theorem1(subject.model, subject.losses, (x, y), kept[0], subject.rho, chunk=subject.chunk)
            )
        rows.append(Theorem1Of(name, theory.theorem1_summary(found)))
    return Theorem1At(epoch, tuple(rows))


def theorem2_epochs(subject: Subject) -> list[int]:
    """Evenly spaced saved epochs from 0 on, at most ``WATCHED``; an average needs at least three."""
    even = [0, *subject.periodic] if 0 in subject.epochs else []
    return even[:: -(-max(1, len(even) - 1) // (WATCHED - 1))]


def theorem2(subject: Subject) -> Theorem2Part:
    """Compare the average of past gradient norms with the current ones, over the saved epochs."""
    epochs = theorem2_epochs(subject)
    period = epochs[1]
    batches = [(x, y) for x, y, _ in subject.batches()]
    largest = 0.0
    for epoch in epochs:
        subject.at(epoch)
        found = [dg.step_geometry(subject.model, subject.losses, [b], subject.rho) for b in batches]
        plain = subject.method.sharpness == "never"
        largest = max([largest, *((f.gradient_norm if plain else f.sam_norm) for f in found)])
    rates = [_mean([learning_rate(subject.config, t) for t in range(e, e + period)]) for e in epochs[:-1]]
    steps = period * -(-len(subject.data.train_y) // subject.config.batch_size)
    return Theorem2Part(
        tuple(epochs),
        theory.theorem2(
            subject.model,
            subject.losses,
            batches,
            [subject.state(e) for e in epochs],
            rates,
            iterations=steps,
            gradient_bound=largest,
            chunk=max(1, subject.chunk // 3),
            samples=min(THEOREM2_SAMPLES, sum(len(y) for _, y in batches)),
        ),
    )


def theorem3(subject: Subject) -> Theorem3Part:
    """Test the bound on logistic regression with this run's samples: first half of the classes against the second."""
    half = subject.data.classes // 2
    x = subject.x.flatten(1).double().cpu()
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
    sides = torch.where(subject.y.cpu() < half, -1.0, 1.0).double()
    problem = theory.LogisticRegression(x / x.norm(dim=1).max(), sides)
    found = [
        theory.theorem3(
            problem,
            alpha=alpha,
            batch=min(32, len(x)),
            eta=step / problem.tau,
            rho=0.25 / problem.tau,
            steps=300,
            runs=4,
            selection=selection,
        )
        for selection in ("random", "ausam", "largest")
        for alpha in (0.25, 0.5, 1.0)
        for step in (0.05, 0.5)
    ]
    fails = not theory.theorem3_counterexample(steps=50_000).holds
    return Theorem3Part(f"classes 0 to {half - 1} against {half} to {subject.data.classes - 1}", tuple(found), fails)


def theorem4(subject: Subject, epoch: int) -> Theorem4At:
    """The bias of what each policy would select, in expectation over its draws."""
    subject.at(epoch)
    policies = subject.policies(epoch)
    drawn, scores = policies["AUSampling"]
    policies["unbiased"] = (replace(drawn, unbiased=True), scores)  # type: ignore[type-var]
    size = min(THEOREM4_SIZE, subject.config.batch_size)
    rows = []
    for name, (policy, known) in policies.items():
        found = [
            theory.theorem4(
                subject.model,
                subject.losses,
                (x, y),
                policy,
                known,
                epoch,
                index=place,
                rho=subject.rho,
                chunk=subject.chunk,
            )
            for x, y, place in subject.batches(size, THEOREM4_SAMPLES // size)
        ]
        rows.append(_theorem4(name, found))
    return Theorem4At(epoch, tuple(rows))


def _theorem4(name: str, found: Sequence[theory.Theorem4]) -> Theorem4Of:
    n = len(found)
    means = {k: _mean([getattr(f, k) for f in found]) for k in ("gradient_norm", "bias", "relative", "cosine")}
    bounds = {k: _mean([getattr(f, k) for f in found]) for k in ("gap", "paper", "corrected")}
    holds = {k: _mean([float(getattr(f, k)) for f in found]) for k in ("paper_holds", "corrected_holds")}
    error = sum((f.error / f.gradient_norm) ** 2 for f in found if f.gradient_norm) ** 0.5 / n
    return Theorem4Of(name, all(f.exact for f in found), n, error=error, **means, **bounds, **holds)


def hessian(subject: Subject) -> HessianPart:
    """Curvature at the last weights."""
    subject.at(subject.last)
    batches = [(subject.x, subject.y)]
    steps = max(10, min(60, BASIS // subject.parameters))
    k = min(5, subject.parameters)
    return HessianPart(
        dg.hessian_eigenvalues(subject.model, subject.losses, batches, k=k, steps=steps),
        dg.hessian_trace(subject.model, subject.losses, batches, probes=32),
    )


def sharpness(subject: Subject) -> SharpnessPart:
    """The rise in loss within several radii, at the last weights."""
    subject.at(subject.last)
    radii = [r * subject.rho for r in RADII]
    batches = [(subject.x, subject.y)]
    return SharpnessPart(
        dg.sharpness(subject.model, subject.losses, batches, radii),
        dg.sharpness(subject.model, subject.losses, batches, radii, m=min(subject.config.batch_size, len(subject.y))),
        dg.sharpness(subject.model, subject.losses, batches, radii, adaptive=True),
    )


def fit(subject: Subject) -> Fit:
    """How well the last weights fit the samples and their labels, right or wrong."""
    subject.at(subject.last)
    with untouched(subject.model), torch.no_grad():
        outputs = torch.cat([subject.model(x) for x in torch.split(subject.x, subject.config.batch_size)])
    fitted = (outputs.argmax(1) == subject.y).double().cpu()
    wrong = subject.data.wrong
    memorised = fitted[wrong[subject.index]] if wrong is not None else fitted[:0]
    return Fit(float(fitted.mean()), float(memorised.mean()) if len(memorised) else None)


def line(subject: Subject) -> dg.Slice:
    """The loss along a random direction, at the last weights."""
    subject.at(subject.last)
    return dg.loss_line(subject.model, subject.losses, [(subject.x, subject.y)], points=21)


def surface(subject: Subject) -> dg.Surface:
    """The loss on a plane, at the last weights."""
    subject.at(subject.last)
    return dg.loss_surface(subject.model, subject.losses, [(subject.x, subject.y)], points=13)


def between(subject: Subject, epoch: int) -> dg.Slice:
    """The loss on the straight line from the weights of an epoch to the last weights."""
    first, second = subject.state(epoch), subject.state(subject.last)
    return dg.loss_between(subject.model, subject.losses, [(subject.x, subject.y)], first, second, beyond=0)


def geometry(subject: Subject, epoch: int) -> GeometryAt:
    """Compare SAM's step with the plain one; means over the mini-batches."""
    subject.at(epoch)
    found = [dg.step_geometry(subject.model, subject.losses, [(x, y)], subject.rho) for x, y, _ in subject.batches()]
    names = [f.name for f in fields(dg.StepGeometry)]
    return GeometryAt(epoch, dg.StepGeometry(**{k: _mean([getattr(f, k) for f in found]) for k in names}))


def selection(subject: Subject) -> SelectionPart:
    """Which samples were selected, from the saved visit counts; this covers the whole data set."""
    n = len(subject.data.train_y)
    scores = subject.scores(subject.last)
    visits = torch.repeat_interleave(torch.arange(n), subject.visits(subject.last))
    wrong = subject.data.wrong
    found = dg.selection(
        [visits],
        n,
        classes=subject.data.train_y,
        wrong=None if wrong is None or not bool(wrong.any()) else wrong,
        scores=torch.where(scores.mean.isfinite(), scores.mean, torch.nan) if subject.policy.kept < 1 else None,
    )
    periods = subject.periodic if len(subject.periodic) > 1 else []
    return SelectionPart(
        samples=n,
        epochs=subject.last,
        period=periods[0] if periods else 0,
        mean=found.mean,
        fewest=found.fewest,
        most=found.most,
        effective=found.effective,
        never=found.never,
        worst_gap=_worst_gap(subject, periods) if periods else None,
        scored=signal_name(subject.policy.signal) in AT_PERTURBED_WEIGHTS and subject.method.sharpness == "sometimes",
        groups=dict(found.groups),
    )


def _worst_gap(subject: Subject, periods: Sequence[int]) -> int:
    """The longest run of periods in which a sample was not used."""
    n = len(subject.data.train_y)
    before, chosen = torch.zeros(n, dtype=torch.int64), []
    for epoch in periods:
        count = subject.visits(epoch)
        chosen.append((count > before).nonzero().flatten())
        before = count
    return dg.selection(chosen, n).worst_gap


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
