"""Curvature: the largest eigenvalues and the trace of the Hessian, using Hessian-vector products only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ausam.common.random import generator
from ausam.diagnostics.objective import Batch, LossFn, Objective, count, eval_mode, normal, positive

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Eigenvalues:
    """The largest eigenvalues of a Hessian.

    Attributes:
        values: the eigenvalues, largest first.
        residuals: ``|H v - lambda v|`` of each. A true eigenvalue lies within this distance of the value.
        converged: whether every residual is within the tolerance.
        products: Hessian-vector products used.
        samples: number of samples in the loss.
    """

    values: tuple[float, ...]
    residuals: tuple[float, ...]
    converged: bool
    products: int
    samples: int


@dataclass(frozen=True)
class Trace:
    """An estimate of the trace of a Hessian.

    Attributes:
        value: mean over the probes.
        error: standard error of the mean.
        probes: number of random vectors.
        samples: number of samples in the loss.
    """

    value: float
    error: float
    probes: int
    samples: int


def hessian_eigenvalues(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Iterable[Batch],
    k: int = 1,
    *,
    steps: int = 60,
    tolerance: float = 1e-3,
    seed: int = 0,
    chunk: int = 128,
) -> Eigenvalues:
    """The ``k`` largest eigenvalues of the Hessian of the mean loss: the curvature of the sharpest directions.

        H v_j = lambda_j v_j,   lambda_1 >= lambda_2 >= ...

    Lanczos's method with full reorthogonalisation, started from a random vector. Of an eigenvalue that occurs several
    times it finds all directions if ``steps`` reaches the number of weights, otherwise one.

    >>> import torch
    >>> from ausam.diagnostics import hessian_eigenvalues
    >>> model = torch.nn.Linear(3, 1, bias=False)
    >>> x = torch.diag(torch.tensor([3.0, 2.0, 1.0]))                   # the Hessian is diag(9, 4, 1) / 3
    >>> eigen = hessian_eigenvalues(model, lambda x: model(x).square().sum(1) / 2, [(x,)], k=2)
    >>> [round(v, 4) for v in eigen.values]
    [3.0, 1.3333]

    Arguments:
        model: the network, measured in eval mode.
        loss_fn: ``loss_fn(*batch)`` returns per-sample losses, as for ``opt.backward``.
        batches: the samples.
        k: number of eigenvalues, in [1, number of weights].
        steps: Hessian-vector products, >= 2, and at least ``k``. Increase it if ``converged`` is False.
        tolerance: largest residual allowed, relative to the largest absolute eigenvalue, > 0.
        seed: seed of the start vectors.
        chunk: samples per pass, >= 1.

    Cost: ``steps + k`` Hessian-vector products. Memory: ``(steps + k) x P``.
    """
    with eval_mode(model):
        objective = Objective(model, loss_fn, batches, chunk=chunk)
        if not 1 <= count("k", k) <= objective.size:
            raise ValueError(f"k is {k}, but the Hessian has {objective.size} eigenvalues.")
        values, residuals = largest(objective.hvp, objective.weights(), k, count("steps", steps, low=2), seed)
    limit = positive("tolerance", tolerance) * max(abs(v) for v in values)
    return Eigenvalues(
        values=tuple(values),
        residuals=tuple(residuals),
        converged=all(r <= max(limit, 1e-12) for r in residuals),
        products=min(max(steps, k), objective.size) + k,
        samples=objective.samples,
    )


def hessian_trace(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Iterable[Batch],
    *,
    probes: int = 64,
    seed: int = 0,
    chunk: int = 128,
) -> Trace:
    """The trace of the Hessian of the mean loss: the total curvature over all directions.

        tr H = E[ z' H z ],   z a vector of random signs

    Hutchinson: A stochastic estimator of the trace, 1990.

    >>> import torch
    >>> from ausam.diagnostics import hessian_trace
    >>> model = torch.nn.Linear(3, 1, bias=False)
    >>> x = torch.diag(torch.tensor([3.0, 2.0, 1.0]))                   # signs are exact for a diagonal Hessian
    >>> trace = hessian_trace(model, lambda x: model(x).square().sum(1) / 2, [(x,)], probes=4)
    >>> round(trace.value, 4), round(trace.error, 4)
    (4.6667, 0.0)

    Arguments:
        model: the network, measured in eval mode.
        loss_fn: ``loss_fn(*batch)`` returns per-sample losses, as for ``opt.backward``.
        batches: the samples.
        probes: number of random vectors, >= 2. The error falls with their square root.
        seed: seed of the random vectors.
        chunk: samples per pass, >= 1.

    Cost: ``probes`` Hessian-vector products. Memory: 2 x P.
    """
    rng = generator(seed)
    with eval_mode(model):
        objective = Objective(model, loss_fn, batches, chunk=chunk)
        first = objective.params[0]
        estimates = []
        for _ in range(count("probes", probes, low=2)):
            z = torch.randint(0, 2, (objective.size,), generator=rng).mul_(2).sub_(1).to(first.device, first.dtype)
            estimates.append(float((z * objective.hvp(z)).double().sum()))
    values = torch.tensor(estimates, dtype=torch.float64)
    return Trace(float(values.mean()), float(values.std() / len(estimates) ** 0.5), len(estimates), objective.samples)


def largest(product: Product, like: Tensor, k: int, steps: int, seed: int) -> tuple[list[float], list[float]]:
    """Values and residuals of the ``k`` largest eigenpairs of a symmetric operator on vectors like this one."""
    rng = generator(seed)
    steps = min(max(steps, k), len(like))
    basis = like.new_zeros(steps, len(like))
    tridiagonal = torch.zeros(steps, steps, dtype=torch.float64)
    v = normal(like, rng)
    for j in range(steps):
        v = _orthogonal(v, basis[:j])
        size = float(torch.linalg.vector_norm(v.double()))
        if j and size <= 10 * torch.finfo(like.dtype).eps * max(float(tridiagonal.abs().max()), 1e-30):
            # The space is invariant. Its eigenvalues are exact, and a new vector finds the others.
            v = _orthogonal(normal(like, rng), basis[:j])
            basis[j] = v / torch.linalg.vector_norm(v)
        else:
            basis[j] = v / size
            tridiagonal[j - 1, j] = tridiagonal[j, j - 1] = size if j else 0.0
        v = product(basis[j])
        tridiagonal[j, j] = float(v.double() @ basis[j].double())
    theta, s = torch.linalg.eigh(tridiagonal)
    values = theta.flip(0)[:k].tolist()
    vectors = s.flip(1)[:, :k].T.to(like.device, like.dtype) @ basis
    # One more product each, because Lanczos's own estimate of the residual knows nothing of rounding.
    residuals = [
        float(torch.linalg.vector_norm((product(x) - value * x).double()))
        for value, x in zip(values, vectors, strict=True)
    ]
    return values, residuals


def _orthogonal(v: Tensor, basis: Tensor) -> Tensor:
    """Project ``v`` orthogonally to all rows. Done twice, because one pass leaves rounding errors."""
    for _ in range(2):
        v = v - basis.T @ (basis @ v)
    return v
