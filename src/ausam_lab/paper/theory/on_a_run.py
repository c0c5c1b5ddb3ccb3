"""The lemma and the theorems on a run: each is a pure function of the run, or of the run and an epoch.

The result of a measurement and what the page shows of it are in :mod:`ausam_lab.paper.theory.page`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ausam.common.random import generator
from ausam.diagnostics import agreement, step_geometry
from ausam.diagnostics.geometry import direction
from ausam.diagnostics.objective import Objective
from ausam.diagnostics.statistics import numbers
from ausam.diagnostics.untouched import untouched
from ausam.policies import AUSampling, Policy, Random, TopLoss
from ausam.sampler.scores import Scores
from ausam_lab.experiments.diagnose.pieces import (
    Measurement,
    OnPiece,
    Piece,
    at_the_end,
    measured,
    only_piece,
    over_training,
)
from ausam_lab.experiments.diagnose.subject import DRAWN, WATCHED, Subject, open_run
from ausam_lab.paper import theory
from ausam_lab.paper.theory import page
from ausam_lab.paper.theory.page import (
    SECTIONS,
    Lemma1At,
    Lemma1Result,
    Lemma1Row,
    Point,
    Theorem1At,
    Theorem1Of,
    Theorem1Result,
    Theorem2Result,
    Theorem3Result,
    Theorem4At,
    Theorem4Of,
    Theorem4Result,
    Theory,
)
from ausam_lab.records import files, store
from ausam_lab.registry.expressions import construct
from ausam_lab.training.schedule import learning_rate

POINTS = 300  # samples shown in a chart
THEOREM2_SAMPLES = 256
THEOREM4_SAMPLES, THEOREM4_SIZE = 256, 128  # the memory of inclusion probabilities grows with the square of the batch


def lemma1(subject: Subject, epoch: int) -> Lemma1At:
    """Compare DLP with norm and projection, in mini-batches shuffled for this epoch."""
    subject.at(epoch)
    dealt = shuffled_batches(subject, epoch)
    batches = [(subject.x[p], subject.y[p]) for p in dealt]
    result = theory.lemma1(subject.model, subject.losses, batches, subject.rho, chunk=subject.chunk)
    position = torch.cat(dealt).argsort()
    dlp, norms, projections = (torch.tensor(v, dtype=torch.float64)[position] for v in _columns(result))
    known = (
        subject.scores(epoch).of(subject.index).double() / subject.rho if epoch and subject.ranks_sharpness else None
    )
    table = None if known is None or bool(known.isnan().all()) else agreement(known, norms)
    columns = (numbers(dlp), numbers(norms), numbers(projections))
    return Lemma1At(epoch, result.norm, result.projection, result.cosine, *columns, table)


def _columns(result: theory.Lemma1) -> tuple[tuple[float, ...], ...]:
    return result.dlp, result.norms, result.projections


def theorem1(subject: Subject, epoch: int) -> Theorem1At:
    """The sharpness of mini-batches, and of the part that each policy would keep."""
    subject.at(epoch)
    rows = []
    for name, (policy, scores) in policies_of(subject, epoch).items():
        result = []
        for b, (x, y, position) in enumerate(subject.batches()):
            kept, _ = policy.choose(scores, epoch, position[None], generator(0x7E01, epoch, b))
            result.append(
                theory.theorem1(subject.model, subject.losses, (x, y), kept[0], subject.rho, chunk=subject.chunk)
            )
        rows.append(Theorem1Of(name, theory.theorem1_summary(result)))
    return Theorem1At(epoch, tuple(rows))


def theorem2_epochs(subject: Subject) -> list[int]:
    """Evenly spaced saved epochs from 0 on, at most ``WATCHED``; an average needs at least three."""
    even = [0, *subject.periodic] if 0 in subject.epochs else []
    return even[:: -(-max(1, len(even) - 1) // (WATCHED - 1))]


def theorem2(subject: Subject) -> Theorem2Result:
    """Compare the average of past gradient norms with the current ones, over the saved epochs."""
    epochs = theorem2_epochs(subject)
    period = epochs[1]
    batches = [(x, y) for x, y, _ in subject.batches()]
    largest = 0.0
    for epoch in epochs:
        subject.at(epoch)
        geometry = [step_geometry(subject.model, subject.losses, [b], subject.rho) for b in batches]
        plain = subject.method.sharpness == "never"
        largest = max([largest, *((f.gradient_norm if plain else f.sam_norm) for f in geometry)])
    rates = [_mean([learning_rate(subject.config, t) for t in range(e, e + period)]) for e in epochs[:-1]]
    steps = period * -(-len(subject.data.train_y) // subject.config.batch_size)
    return Theorem2Result(
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


def theorem3(subject: Subject) -> Theorem3Result:
    """Test the bound on logistic regression with this run's samples: first half of the classes against the second."""
    half = subject.data.num_outputs // 2
    x = subject.x.flatten(1).double().cpu()
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
    sides = torch.where(subject.y.cpu() < half, -1.0, 1.0).double()
    problem = theory.LogisticRegression(x / x.norm(dim=1).max(), sides)
    result = [
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
    return Theorem3Result(f"classes 0 to {half - 1} against {half} to {subject.data.num_outputs - 1}", tuple(result))


def theorem4(subject: Subject, epoch: int) -> Theorem4At:
    """The bias of what each policy would select, in expectation over its draws."""
    subject.at(epoch)
    policies = policies_of(subject, epoch)
    drawn, scores = policies["AUSampling"]
    policies["unbiased"] = (replace(drawn, unbiased=True), scores)  # type: ignore[type-var]
    size = min(THEOREM4_SIZE, subject.config.batch_size)
    rows = []
    for name, (policy, known) in policies.items():
        result = [
            theory.theorem4(
                subject.model,
                subject.losses,
                (x, y),
                policy,
                known,
                epoch,
                index=position,
                rho=subject.rho,
                chunk=subject.chunk,
            )
            for x, y, position in subject.batches(size, THEOREM4_SAMPLES // size)
        ]
        rows.append(_theorem4(name, result))
    return Theorem4At(epoch, tuple(rows))


def _theorem4(name: str, result: Sequence[theory.Theorem4]) -> Theorem4Of:
    n = len(result)
    means = {k: _mean([getattr(f, k) for f in result]) for k in ("gradient_norm", "bias", "relative", "cosine")}
    bounds = {k: _mean([getattr(f, k) for f in result]) for k in ("gap", "paper", "corrected")}
    holds = {k: _mean([float(getattr(f, k)) for f in result]) for k in ("paper_holds", "corrected_holds")}
    error = sum((f.error / f.gradient_norm) ** 2 for f in result if f.gradient_norm) ** 0.5 / n
    return Theorem4Of(name, all(f.exact for f in result), n, error=error, **means, **bounds, **holds)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# -- the run -----------------------------------------------------------------------------------------------------------


def shuffled_batches(subject: Subject, epoch: int, turn: int = 0) -> list[Tensor]:
    """Positions of the samples in shuffled mini-batches, determined by the arguments."""
    order = torch.randperm(len(subject.index), generator=generator(DRAWN, epoch, turn))
    return list(torch.split(order, subject.config.batch_size))


def dlp(subject: Subject, epoch: int) -> Tensor:
    """|L_i(w + e) - L_i(w)| of every sample at the current weights, in mini-batches shuffled for this epoch."""
    change = torch.zeros(len(subject.index))
    with untouched(subject.model):
        for p in shuffled_batches(subject, epoch, turn=1):
            objective = Objective(subject.model, subject.losses, [(subject.x[p], subject.y[p])])
            e = subject.rho * direction(objective.gradient())
            change[p] = (objective.losses(e) - objective.losses()).abs().cpu()
    return change


def policies_of(subject: Subject, epoch: int) -> dict[str, tuple[Policy, Scores]]:
    """AUSampling, Random and TopLoss with this run's alpha, each with the scores it would have now.

    AUSampling uses the run's own scores if that is the run's policy or if its policy ranks by sharpness, else the
    current DLP. TopLoss uses the current losses.
    """
    alpha = getattr(subject.policy, "alpha", None) or subject.config.alpha or 0.5
    alpha = alpha if alpha < 1 else 0.5
    own = {"s_min": subject.config.s_min, "s_max": subject.config.s_max, "ramp": subject.config.ramp}
    drawn = construct("policy", "AUSampling", alpha=alpha, epochs=subject.config.epochs, **own)
    if isinstance(subject.policy, AUSampling):
        drawn = replace(subject.policy, alpha=alpha, unbiased=False)
    sharp, loss = Scores(len(subject.index)), Scores(len(subject.index), 0.0)
    everyone = torch.arange(len(subject.index))
    own_scores = subject.ranks_sharpness or isinstance(subject.policy, AUSampling)
    sharp.record(everyone, subject.scores(epoch).of(subject.index) if own_scores else dlp(subject, epoch))
    with untouched(subject.model):
        batch = [(subject.x, subject.y)]
        loss.record(everyone, Objective(subject.model, subject.losses, batch, chunk=subject.config.batch_size).losses())
    return {
        "AUSampling": (drawn, sharp),
        "Random": (Random(alpha=alpha), loss),
        "TopLoss": (TopLoss(alpha=alpha), loss),
    }


def full_epochs(subject: Subject) -> int:
    """The number of initial epochs in which all samples are used."""
    return max(1, getattr(subject.policy, "full_epochs", 1))


# -- pieces ------------------------------------------------------------------------------------------------------------


def _join_lemma1(subject: Subject, results: list[Lemma1At]) -> Lemma1Result:
    rows = []
    for i, at in enumerate(results):
        past = [[v * subject.rho for v in before.dlp] for before in results[:i]]
        average = theory.average_dlp(past, at.norms, subject.rho) if past else None
        rows.append(Lemma1Row(at.epoch, at.norm, at.projection, at.cosine, at.table, average))
    end = results[-1]
    points = [Point(*p) for p in zip(end.dlp, end.norms, end.projections, strict=True)]
    return Lemma1Result(tuple(rows), tuple(points[:POINTS]))


def _theorem2_pieces(subject: Subject) -> Iterator[Piece]:
    epochs = theorem2_epochs(subject)
    if len(epochs) < 3:
        raise ValueError(
            f"theorem2 needs weights from the start of training on, but {subject.folder} has kept only "
            f"{_listed(sorted(subject.saved))}. Train with --every N, which keeps every N-th epoch."
        )
    yield Piece("theorem2", Theorem2Result, tuple(epochs), lambda: theorem2(subject))


def _listed(epochs: list[int]) -> str:
    return f"epoch{'s' if len(epochs) > 1 else ''} {' and '.join(map(str, epochs))}"


MEASUREMENTS = {
    "lemma1": over_training("lemma1", Lemma1At, lemma1, _join_lemma1),
    "theorem1": over_training(
        "theorem1", Theorem1At, theorem1, lambda _, rows: Theorem1Result(tuple(rows)), full_epochs
    ),
    "theorem2": Measurement(_theorem2_pieces, only_piece),
    "theorem3": at_the_end("theorem3", Theorem3Result, theorem3),
    "theorem4": over_training(
        "theorem4", Theorem4At, theorem4, lambda _, rows: Theorem4Result(tuple(rows)), full_epochs
    ),
}


def diagnose_theory(
    folder: Path, what: Sequence[str] | None, samples: int, command: str, on_piece: OnPiece, **here: Any
) -> Theory:
    """Measure what is missing in the folder of a run; see :func:`ausam_lab.experiments.diagnose.run.diagnose`."""
    subject = open_run(folder, samples, **here)
    whole = Theory(**measured(MEASUREMENTS, SECTIONS, what, subject, command, on_piece))
    store.write(folder / "theory.json", whole)
    files.write(folder / "theory.html", page.render(whole))
    return whole
