"""Theorem 2: the average gradient norm of past epochs approximates the current one.

    python -m research.theory.theorem2            # measure on digits, write part "theorem2" of digits.json
    python -m research.theory.theorem2 --smoke    # the same in seconds, and nothing is written

It holds for learning rates that fall as ``1 / t^2``, which train nothing, and the bound is thousands of times too
loose. The proof shows a bound for every schedule; with a cosine it grows with the epochs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from research.theory.digits import BATCH, Settings, main, train
from research.theory.gradients import PerSample
from torch import Tensor, nn

from ausam import Full, Plain


@dataclass(frozen=True)
class Theorem2:
    """The deviation of the average from the current gradient norm after each epoch, with its bounds.

    Attributes:
        epochs: T = 2, 3, ...
        mean, largest: mean and largest deviation over the samples, at each T.
        relative: mean deviation / mean current norm, at each T.
        paper: ``tau eta_1 pi^2 N G / 6``, the theorem's bound, the same for every T.
        schedule_bound: ``tau N G / (T-1) sum_j j eta_j`` at T, for any schedule.
        path_bound: ``tau / (T-1) sum_t |w_T - w_t|`` at T, from the measured distances between checkpoints.
        tau: estimated smoothness, the largest ``|grad L_i(w_s) - grad L_i(w_t)| / |w_s - w_t|`` on the path.
        gradient_bound: G.
        iterations: N, steps per epoch.
        applies: whether the learning rates are ``eta_1 / t^2``, as the theorem assumes.
        holds: whether the largest deviation is within the paper's bound at every T; None if it does not apply.
        schedule_holds: whether it is within ``schedule_bound`` at every T, for any schedule.
        samples: number of samples.
    """

    epochs: tuple[int, ...]
    mean: tuple[float, ...]
    largest: tuple[float, ...]
    relative: tuple[float, ...]
    paper: float
    schedule_bound: tuple[float, ...]
    path_bound: tuple[float, ...]
    tau: float
    gradient_bound: float
    iterations: int
    applies: bool
    holds: bool | None
    schedule_holds: bool
    samples: int


def theorem2(
    model: nn.Module,
    loss_fn,
    batches: Sequence[tuple[Tensor, ...]],
    checkpoints: Sequence[Mapping[str, Tensor]],
    lr: Sequence[float],
    *,
    iterations: int,
    gradient_bound: float,
) -> Theorem2:
    """Measure how far the average gradient norm is from the current one, with three bounds.

        d_i(T) = | |grad L_i(w_T)| - 1/(T-1) sum_{t<T} |grad L_i(w_t)| |  <=  tau eta_1 pi^2 N G / 6

    The theorem is about learning rates ``eta_t = eta_1 / t^2`` and plain SGD. Its proof shows more than it states:
    ``d_i(T) <= tau N G / (T-1) sum_j j eta_j`` for every schedule. With ``eta_1 / t^2`` that is
    ``tau N G eta_1 (1 + ... + 1/(T-1)) / (T-1)``, which goes to zero. With a cosine it grows in proportion to T.

    Arguments:
        batches: the samples whose gradients are tracked.
        checkpoints: cloned ``model.state_dict()`` at the start of epochs 1, 2, ..., T; at least two.
        lr: learning rate of epochs 1, ..., T - 1.
        iterations: N, steps per epoch.
        gradient_bound: G, the largest norm of a step's gradient in the run.

    tau is estimated from below, so the true bounds are looser still. The theorem does not cover momentum or weight
    decay: with them read ``path_bound``, which assumes nothing about the steps.
    """
    samples = PerSample(model, loss_fn)
    points = [samples.weights(state) for state in checkpoints]
    distance = np.array([[float((a - b).double().norm()) for b in points] for a in points])
    norms, tau = _walk(samples, batches, points, distance)
    eta, g_max, t_max = np.array(lr), gradient_bound, len(points)
    epochs = tuple(range(2, t_max + 1))
    gaps = [np.abs(norms[t - 1] - norms[: t - 1].mean(0)) for t in epochs]
    schedule = [tau * iterations * g_max / (t - 1) * float((np.arange(1, t) * eta[: t - 1]).sum()) for t in epochs]
    path = [tau / (t - 1) * float(distance[t - 1, : t - 1].sum()) for t in epochs]
    paper = tau * float(eta[0]) * math.pi**2 * iterations * g_max / 6
    applies = bool(np.allclose(eta, eta[0] / np.arange(1, t_max) ** 2, rtol=1e-3))
    largest = [float(g.max()) for g in gaps]
    return Theorem2(
        epochs=epochs,
        mean=tuple(float(g.mean()) for g in gaps),
        largest=tuple(largest),
        relative=tuple(float(g.mean() / max(norms[t - 1].mean(), 1e-30)) for g, t in zip(gaps, epochs, strict=True)),
        paper=paper,
        schedule_bound=tuple(schedule),
        path_bound=tuple(path),
        tau=tau,
        gradient_bound=g_max,
        iterations=iterations,
        applies=applies,
        holds=max(largest) <= paper * (1 + 1e-6) if applies else None,
        schedule_holds=all(d <= b * (1 + 1e-6) for d, b in zip(largest, schedule, strict=True)),
        samples=norms.shape[1],
    )


def _walk(samples: PerSample, batches, points: list[Tensor], distance: np.ndarray) -> tuple[np.ndarray, float]:
    """Gradient norms of the samples at each point, and the steepest change of a gradient between two points."""
    columns, tau, last = [], 0.0, len(points) - 1
    for batch in batches:
        end = samples.gradients(batch, points[last])
        before: Tensor | None = None
        norms = []
        for t, point in enumerate(points):
            here = samples.gradients(batch, point)
            norms.append(here.norm(dim=1).numpy())
            for other, s in ((end, last), (before, t - 1)):
                if other is not None and distance[s, t] > 0:
                    tau = max(tau, float((here - other).norm(dim=1).max()) / float(distance[s, t]))
            before = here
        columns.append(np.stack(norms))
    return np.concatenate(columns, axis=1), tau


def measure(settings: Settings) -> dict:
    """Plain SGD without momentum, as the proof has it, with the theorem's learning rates and with a cosine."""
    rows, epochs = [], settings.epochs
    schedules = {"1/t^2": lambda t: 0.5 / t**2, "cosine": lambda t: 0.25 * (1 + np.cos(np.pi * (t - 1) / epochs))}
    for name, rate in schedules.items():
        for seed in settings.seeds:
            run = train(seed, Plain(), Full(), settings, momentum=0.0, rate=rate)
            result = theorem2(
                run.model,
                run.losses,
                run.batches(4),
                run.states[:-1],
                run.rates[:-1],
                iterations=settings.samples // BATCH,
                gradient_bound=run.largest_gradient,
            )
            rows.append({"schedule": name, "seed": seed, "accuracy": run.accuracy(), **asdict(result)})
    return {"runs": rows}


if __name__ == "__main__":
    main("theorem2", measure)
