"""Theorem 2: the average gradient norm of past epochs as an estimate of the current one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ausam.diagnostics.arguments import count, positive
from ausam.diagnostics.batches import Batch
from ausam.diagnostics.objective import LossFn, Objective
from ausam.diagnostics.samples import gradient_rows
from ausam.diagnostics.statistics import Array, numbers
from ausam.diagnostics.untouched import untouched


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
    loss_fn: LossFn,
    batches: Iterable[Batch],
    checkpoints: Sequence[Mapping[str, Tensor]],
    lr: Sequence[float],
    *,
    iterations: int,
    gradient_bound: float,
    chunk: int = 32,
    samples: int | None = None,
) -> Theorem2:
    """Measure how far the average gradient norm is from the current one, with three bounds.

        d_i(T) = | |grad L_i(w_T)| - 1/(T-1) sum_{t<T} |grad L_i(w_t)| |  <=  tau eta_1 pi^2 N G / 6

    Theorem 2 of Deng et al., AAAI 2025, for learning rates ``eta_t = eta_1 / t^2`` and plain SGD. Its proof shows more
    than the theorem states: ``d_i(T) <= tau N G / (T-1) sum_j j eta_j`` for every schedule. With ``eta_1 / t^2`` that
    is ``tau N G eta_1 (1 + ... + 1/(T-1)) / (T-1)``, which goes to zero. With a cosine it grows in proportion to T.

    >>> import torch, torch.nn.functional as F
    >>> from ausam_lab.paper.theory import theorem2
    >>> _ = torch.manual_seed(0)
    >>> model, x, y = torch.nn.Linear(3, 1), torch.randn(8, 3), torch.randn(8, 1)
    >>> losses = lambda x, y: F.mse_loss(model(x), y, reduction="none").sum(1)
    >>> saved, lr, largest = [], [0.1, 0.1 / 4, 0.1 / 9], 0.0
    >>> for eta in (*lr, 0.0):                                            # one step per epoch, so N = 1
    ...     saved.append({k: v.clone() for k, v in model.state_dict().items()})
    ...     g = torch.autograd.grad(losses(x, y).mean(), list(model.parameters()))
    ...     largest = max(largest, float(torch.cat([t.flatten() for t in g]).norm()))
    ...     with torch.no_grad():
    ...         for p, t in zip(model.parameters(), g):
    ...             _ = p.sub_(eta * t)
    >>> result = theorem2(model, losses, [(x, y)], saved, lr, iterations=1, gradient_bound=largest)
    >>> result.applies, result.holds
    (True, True)

    Arguments:
        model: the network, measured in eval mode (see :func:`ausam.diagnostics.sample_gradients`).
        loss_fn: ``loss_fn(*batch)`` returns per-sample losses, as for ``opt.backward``.
        batches: the samples whose gradients are tracked.
        checkpoints: cloned ``model.state_dict()`` at the start of epochs 1, 2, ..., T; at least two. With BatchNorm,
            each checkpoint has its own statistics, and tau includes their change.
        lr: learning rate of epochs 1, ..., T - 1, each > 0.
        iterations: N, steps per epoch, >= 1.
        gradient_bound: G, the largest norm of a step's gradient in the run, > 0.
        chunk: samples differentiated at once, >= 1.
        samples: how many samples to use, from the first; None for all.

    tau is estimated from below, so the true bounds are looser still. The theorem does not cover momentum or weight
    decay: with them read ``path_bound``, which assumes nothing about the steps.
    Cost: T + 1 gradients per sample. Memory: 3 x chunk x P, and the checkpoints.
    """
    g_max, n_steps = positive("gradient_bound", gradient_bound), count("iterations", iterations)
    if len(checkpoints) < 2 or len(lr) != len(checkpoints) - 1:
        raise ValueError(
            f"There are {len(checkpoints)} checkpoints and {len(lr)} learning rates. Pass the weights at the start of "
            "epochs 1 to T, at least two, and the learning rates of epochs 1 to T - 1."
        )
    eta = np.array([positive("lr", v) for v in lr])
    with untouched(model):
        objective = Objective(model, loss_fn, batches, chunk=chunk, samples=samples)
        points = [objective.moved(state) for state in checkpoints]
        distance = _distances(points)
        norms, tau = _walk(points, distance)
    t_max = len(points)
    epochs = tuple(range(2, t_max + 1))
    gaps = [np.abs(norms[t - 1] - norms[: t - 1].mean(0)) for t in epochs]
    schedule = [tau * n_steps * g_max / (t - 1) * float((np.arange(1, t) * eta[: t - 1]).sum()) for t in epochs]
    path = [tau / (t - 1) * float(distance[t - 1, : t - 1].sum()) for t in epochs]
    paper = tau * float(eta[0]) * math.pi**2 * n_steps * g_max / 6
    applies = bool(np.allclose(eta, eta[0] / np.arange(1, t_max) ** 2, rtol=1e-3))
    largest = [float(g.max()) for g in gaps]
    return Theorem2(
        epochs=epochs,
        mean=numbers([g.mean() for g in gaps]),
        largest=numbers(largest),
        relative=numbers([g.mean() / max(norms[t - 1].mean(), 1e-30) for g, t in zip(gaps, epochs, strict=True)]),
        paper=paper,
        schedule_bound=numbers(schedule),
        path_bound=numbers(path),
        tau=tau,
        gradient_bound=g_max,
        iterations=n_steps,
        applies=applies,
        holds=max(largest) <= paper * (1 + 1e-6) if applies else None,
        schedule_holds=all(d <= b * (1 + 1e-6) for d, b in zip(largest, schedule, strict=True)),
        samples=objective.samples,
    )


def _distances(points: list[Objective]) -> Array:
    """``|w_s - w_t|`` for all pairs; refused if all are zero."""
    flat = [p.weights() for p in points]
    table = np.array([[float(torch.linalg.vector_norm((a - b).double())) for b in flat] for a in flat])
    if not table.any():
        raise ValueError(
            "All checkpoints hold the same weights. state_dict() returns references, so clone its tensors when you "
            "save it: {k: v.clone() for k, v in model.state_dict().items()}."
        )
    return table


def _walk(points: list[Objective], distance: Array) -> tuple[Array, float]:
    """Gradient norms of the samples at each point, and the steepest change of a gradient between two points."""
    columns, tau, last = [], 0.0, len(points) - 1
    for batch in points[0].chunks():
        (end,) = gradient_rows(points[last].on(batch))
        before: Tensor | None = None
        norms = []
        for t, point in enumerate(points):
            (here,) = gradient_rows(point.on(batch))
            norms.append(torch.linalg.vector_norm(here.double(), dim=1).cpu().numpy())
            for other, s in ((end, last), (before, t - 1)):
                if other is not None and distance[s, t] > 0:
                    change = float(torch.linalg.vector_norm((here - other).double(), dim=1).max())
                    tau = max(tau, change / float(distance[s, t]))
            before = here
        columns.append(np.stack(norms))
    return np.concatenate(columns, axis=1), tau
