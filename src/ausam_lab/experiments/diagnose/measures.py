"""The measurements of a diagnosis: each is a pure function of the run, or of the run and an epoch.

The result of a measurement and what the page shows of it are in :mod:`ausam_lab.report.pages.diagnosis`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import torch

from ausam import diagnostics as dg
from ausam.diagnostics.untouched import untouched
from ausam.policies.signals import AT_PERTURBED_WEIGHTS, signal_name
from ausam_lab.experiments.diagnose.pieces import Measurement, Piece, at_the_end, only_piece, over_training
from ausam_lab.experiments.diagnose.subject import Subject
from ausam_lab.report.pages.diagnosis import (
    GeometryAt,
    GeometryResult,
    HessianResult,
    LandscapeResult,
    SelectionResult,
    SharpnessResult,
)
from ausam_lab.report.pages.flatness import Fit

RADII = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the run's rho
BASIS = 2**28  # numbers that the eigenvalue search may store: 1 GB


def hessian(subject: Subject) -> HessianResult:
    """Curvature at the last weights."""
    subject.at(subject.last)
    batches = [(subject.x, subject.y)]
    steps = max(10, min(60, BASIS // subject.parameters))
    k = min(5, subject.parameters)
    return HessianResult(
        dg.hessian_eigenvalues(subject.model, subject.losses, batches, k=k, steps=steps),
        dg.hessian_trace(subject.model, subject.losses, batches, probes=32),
    )


def sharpness(subject: Subject) -> SharpnessResult:
    """The rise in loss within several radii, at the last weights."""
    subject.at(subject.last)
    radii = [r * subject.rho for r in RADII]
    batches = [(subject.x, subject.y)]
    return SharpnessResult(
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
    steps = [dg.step_geometry(subject.model, subject.losses, [(x, y)], subject.rho) for x, y, _ in subject.batches()]
    names = [f.name for f in fields(dg.StepGeometry)]
    return GeometryAt(epoch, dg.StepGeometry(**{k: _mean([getattr(step, k) for step in steps]) for k in names}))


def selection(subject: Subject) -> SelectionResult:
    """Which samples were selected, from the saved visit counts; this covers the whole data set."""
    n = len(subject.data.train_y)
    scores = subject.scores(subject.last)
    visits = torch.repeat_interleave(torch.arange(n), subject.visits(subject.last))
    wrong = subject.data.wrong
    visited = dg.selection(
        [visits],
        n,
        classes=subject.data.train_y,
        wrong=None if wrong is None or not bool(wrong.any()) else wrong,
        scores=torch.where(scores.mean.isfinite(), scores.mean, torch.nan) if subject.policy.kept < 1 else None,
    )
    periods = subject.periodic if len(subject.periodic) > 1 else []
    return SelectionResult(
        samples=n,
        epochs=subject.last,
        period=periods[0] if periods else 0,
        mean=visited.mean,
        fewest=visited.fewest,
        most=visited.most,
        effective=visited.effective,
        never=visited.never,
        worst_gap=_worst_gap(subject, periods) if periods else None,
        scored=signal_name(subject.policy.signal) in AT_PERTURBED_WEIGHTS and subject.method.sharpness == "sometimes",
        groups=dict(visited.groups),
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
    """The mean of the numbers that exist; a mini-batch of one sample has no correlation."""
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


def _landscape_pieces(subject: Subject) -> Iterator[Piece]:
    last, first = subject.last, subject.epochs[0]
    yield Piece("line", dg.Slice, (last,), lambda: line(subject))
    yield Piece("surface", dg.Surface, (last,), lambda: surface(subject))
    if first < last:
        yield Piece("between", dg.Slice, (first, last), lambda: between(subject, first))


def _landscape(subject: Subject, results: list[Any]) -> LandscapeResult:
    return LandscapeResult(results[0], results[1], subject.epochs[0], results[2] if len(results) > 2 else None)


def _selection_pieces(subject: Subject) -> Iterator[Piece]:
    yield Piece("selection", SelectionResult, tuple(sorted(subject.saved)), lambda: selection(subject))


MEASUREMENTS = {
    "sharpness": at_the_end("sharpness", SharpnessResult, sharpness),
    "hessian": at_the_end("hessian", HessianResult, hessian),
    "landscape": Measurement(_landscape_pieces, _landscape),
    "selection": Measurement(_selection_pieces, only_piece),
    "geometry": over_training("geometry", GeometryAt, geometry, lambda _, rows: GeometryResult(tuple(rows))),
}
FIT = at_the_end("fit", Fit, fit)  # of a comparison, beside the flatness
