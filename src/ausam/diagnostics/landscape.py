"""Slices of the loss surface along random directions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from ausam.common.random import generator
from ausam.diagnostics.objective import Batch, LossFn, Objective, count, eval_mode, positive


@dataclass(frozen=True)
class Slice:
    """The loss along a line.

    Attributes:
        position: t of each point; t = 0 is at the weights.
        loss: mean loss at each point.
        samples: number of samples.
    """

    position: tuple[float, ...]
    loss: tuple[float, ...]
    samples: int


@dataclass(frozen=True)
class Surface:
    """The loss on a plane through the weights.

    Attributes:
        position: s and t of the rows and columns.
        loss: ``loss[i][j]`` at ``w + position[i] d_1 + position[j] d_2``.
        samples: number of samples.
    """

    position: tuple[float, ...]
    loss: tuple[tuple[float, ...], ...]
    samples: int


def loss_line(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Iterable[Batch],
    *,
    radius: float = 1.0,
    points: int = 21,
    seed: int = 0,
    chunk: int = 256,
) -> Slice:
    """The loss along a random direction with filter normalisation.

        L(w + t d),  -radius <= t <= radius;   d_f = |w_f| z_f / |z_f| for each filter f, z normal

    Li, Xu, Taylor, Studer, Goldstein: Visualizing the Loss Landscape of Neural Nets, NeurIPS 2018. A filter is a row
    of a parameter with two or more dimensions. Biases and the weights of normalisation layers are not moved. This makes
    slices of two networks comparable even if their weights differ in scale.

    >>> import torch
    >>> from ausam.diagnostics import loss_line
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.constant_(model.weight, 2.0)                  # d is 2 or -2, and L(w + t d) = (2 + t d)^2
    >>> line = loss_line(model, lambda x: model(x).square().sum(1), [(torch.ones(1, 1),)], points=3)
    >>> sorted(round(v, 4) for v in line.loss)
    [0.0, 4.0, 16.0]

    Arguments:
        model: the network, measured in eval mode.
        loss_fn: ``loss_fn(*batch)`` returns per-sample losses, as for ``opt.backward``.
        batches: the samples.
        radius: how far to go, > 0. At 1 every filter has moved by its own norm.
        points: number of points, >= 2. An odd number includes w itself.
        seed: seed of the direction.
        chunk: samples per pass, >= 1.

    Cost: one forward pass per point, and one forward-backward of the first chunk. Memory: 3 x P.
    """
    where = _positions(positive("radius", radius), points)
    with eval_mode(model):
        objective = Objective(model, loss_fn, batches, chunk=chunk)
        d = filter_direction(objective, generator(seed))
        loss = [objective.loss(t * d if t else None) for t in where]
    return Slice(tuple(where), tuple(loss), objective.samples)


def loss_surface(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Iterable[Batch],
    *,
    radius: float = 1.0,
    points: int = 21,
    seed: int = 0,
    chunk: int = 256,
) -> Surface:
    """The loss on the plane of two random directions with filter normalisation.

        L(w + s d_1 + t d_2),  -radius <= s, t <= radius

    For the source and the arguments see :func:`loss_line`, which uses the direction ``d_1``.

    >>> import torch
    >>> from ausam.diagnostics import loss_surface
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> plane = loss_surface(model, lambda x: model(x).square().sum(1), [(torch.ones(4, 2),)], points=3)
    >>> len(plane.loss), len(plane.loss[0])
    (3, 3)

    Cost: ``points^2`` forward passes, and one forward-backward of the first chunk. Memory: 4 x P.
    """
    where = _positions(positive("radius", radius), points)
    with eval_mode(model):
        objective = Objective(model, loss_fn, batches, chunk=chunk)
        rng = generator(seed)
        d1, d2 = filter_direction(objective, rng), filter_direction(objective, rng)
        loss = tuple(tuple(objective.loss(s * d1 + t * d2 if s or t else None) for t in where) for s in where)
    return Surface(tuple(where), loss, objective.samples)


def filter_direction(objective: Objective, rng: Generator) -> Tensor:
    """A random direction whose filters have the norms of the weights' filters. Everything else is zero."""
    parts = []
    for p, z in zip(objective.params, objective.parts(objective.normal(rng)), strict=True):
        if p.dim() < 2:
            parts.append(torch.zeros_like(p))
            continue
        filters, drawn = p.flatten(1), z.flatten(1)
        length = torch.linalg.vector_norm(filters, dim=1, keepdim=True) / torch.linalg.vector_norm(
            drawn, dim=1, keepdim=True
        )
        parts.append((drawn * length).view(p.shape))
    if not any(bool(p.any()) for p in parts):
        raise ValueError(
            "All parameters with two or more dimensions are zero, so filter normalisation leaves no direction to "
            "look in. Use weights that have been initialised."
        )
    return objective.flat(parts)


def _positions(radius: float, points: int) -> list[float]:
    half = torch.linspace(-radius, radius, count("points", points, low=2), dtype=torch.float64).tolist()
    return [0.0 if abs(t) < 1e-12 * radius else t for t in half]
