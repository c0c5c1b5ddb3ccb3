"""Flatness: how much the loss rises near the weights, at the worst point and on average."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ausam.common.random import generator
from ausam.diagnostics.objective import Batch, LossFn, Objective, count, eval_mode, parts, positive


@dataclass(frozen=True)
class Sharpness:
    """The rise of the loss within each radius.

    Attributes:
        rho: the radii.
        worst: ``max L(w + e) - L(w)`` over the ball, found by ascent and so a lower bound. With ``m``, the mean over
            groups of m samples, each at its own worst point.
        average, average_error: ``E L(w + e) - L(w)`` over random directions of length rho, and its standard error.
        loss: ``L(w)``.
        m: samples per group. None for one group of all samples.
        adaptive: whether the ball is scaled by the magnitude of each weight.
        samples: number of samples.
    """

    rho: tuple[float, ...]
    worst: tuple[float, ...]
    average: tuple[float, ...]
    average_error: tuple[float, ...]
    loss: float
    m: int | None
    adaptive: bool
    samples: int


def sharpness(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Iterable[Batch],
    rho: Iterable[float] | float = (0.01, 0.02, 0.05, 0.1, 0.2),
    *,
    m: int | None = None,
    adaptive: bool = False,
    steps: int = 10,
    directions: int = 16,
    seed: int = 0,
    chunk: int = 256,
) -> Sharpness:
    """Worst-case sharpness, m-sharpness and average-case sharpness for several radii.

        worst(rho)   = max_{|e| <= rho} L(w + e) - L(w)
        average(rho) = E L(w + rho u) - L(w),   u uniform on the unit sphere
        adaptive:      |e / (|w| + 0.01)| <= rho, element by element; u = (|w| + 0.01) times a direction

    Foret et al., ICLR 2021 (SAM, m-sharpness). Kwon et al., ICML 2021 (ASAM, adaptive). The maximum is sought by
    iterating ``e <- rho g / |g|`` with g the gradient at w + e. The first step is SAM's. On a quadratic bowl the
    iteration is the power method.

    >>> import torch
    >>> from ausam.diagnostics import sharpness
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> x = torch.diag(torch.tensor([2.0, 0.0]))                        # L(w) = w_1^2: at the minimum, curvature 2
    >>> curve = sharpness(model, lambda x: model(x).square().sum(1) / 2, [(x,)], rho=[0.1, 0.2])
    >>> [round(v, 4) for v in curve.worst]
    [0.01, 0.04]

    Arguments:
        model: the network, measured in eval mode.
        loss_fn: ``loss_fn(*batch)`` returns per-sample losses, as for ``opt.backward``.
        batches: the samples.
        rho: radius or radii, each > 0. A list, an array or a tensor.
        m: samples per group, >= 1. Each group has its own worst point, as SAM has per batch and device. None for one
            group of all samples.
        adaptive: scale the ball by the weights, so that rescaling a layer does not change the result.
        steps: ascent steps, >= 1.
        directions: number of random directions, >= 2.
        seed: seed of the random directions.
        chunk: samples per pass, >= 1.

    Cost per radius: ``steps`` forward-backward and ``steps + directions`` forward passes. Memory: 5 x P.
    """
    radii = _radii(rho)
    count("directions", directions, low=2)
    with eval_mode(model):
        objective = Objective(model, loss_fn, batches, chunk=chunk)
        groups = [objective] if m is None else _groups(objective, count("m", m))
        scale = objective.weights().abs() + 0.01 if adaptive else torch.ones_like(objective.weights())
        here = objective.losses().double()
        worst, average, error = [], [], []
        for r in radii:
            total = sum(_worst(g, scale, r, count("steps", steps), seed) * g.samples for g in groups)
            worst.append(total / objective.samples)
            rng = generator(seed)
            rises = torch.empty(directions, dtype=torch.float64)
            for j in range(directions):
                u = objective.normal(rng)
                rises[j] = (objective.losses(r * scale * u / torch.linalg.vector_norm(u)).double() - here).mean()
            average.append(float(rises.mean()))
            error.append(float(rises.std() / directions**0.5))
    return Sharpness(
        rho=tuple(radii),
        worst=tuple(worst),
        average=tuple(average),
        average_error=tuple(error),
        loss=float(here.mean()),
        m=m,
        adaptive=adaptive,
        samples=objective.samples,
    )


def _radii(rho: Any) -> list[float]:
    """The radii as numbers. At least one."""
    given = rho.tolist() if hasattr(rho, "tolist") else rho
    radii = [positive("rho", r) for r in (given if isinstance(given, Iterable) else [given])]
    if not radii:
        raise ValueError("rho holds no radius. Pass at least one, e.g. rho=[0.05, 0.1].")
    return radii


def _groups(objective: Objective, m: int) -> list[Objective]:
    """The samples in groups of ``m``. The last of a batch may be smaller."""
    return [objective.on(part) for batch in objective.batches for part in parts(batch, m)]


def _worst(objective: Objective, scale: Tensor, rho: float, steps: int, seed: int) -> float:
    """The largest rise found by the ascent; at least 0, because e = 0 is in the ball."""
    here = objective.losses().double()
    gradient = objective.gradient()
    if not bool(gradient.any()):  # at a stationary point, start in a random direction
        gradient = objective.normal(generator(seed))
    best = 0.0
    for step in range(steps):
        scaled = scale * gradient
        length = torch.linalg.vector_norm(scaled)
        if not bool(length > 0):
            break
        e = rho / length * scale * scaled
        best = max(best, float((objective.losses(e).double() - here).mean()))
        if step + 1 < steps:
            gradient = objective.gradient(e)
    return best
