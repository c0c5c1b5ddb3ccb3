"""Theorem 1: how leaving samples out changes the sharpness of a mini-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ausam.diagnostics.arguments import positive
from ausam.diagnostics.batches import Batch, rows, size
from ausam.diagnostics.objective import LossFn, Objective
from ausam.diagnostics.samples import gradient_rows
from ausam.diagnostics.untouched import untouched

# The bounds hold in exact arithmetic; this fraction of the compared quantities is allowed for rounding.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Bounds:
    """The first-order difference in sharpness between a batch and its kept part, with bounds on it.

    Attributes:
        first_order: ``rho | |g_B| - |g_kept| |``.
        paper: ``rho mean_left |g_i|``, theorem 1's bound, which can be too small.
        corrected: ``rho (M/K) |g_left - g_kept|``. Always holds.
        triangle: ``rho (M/K) (mean_left |g_i| + mean_kept |g_i|)``, computable from norms alone. Always holds.
        paper_holds, corrected_holds, triangle_holds: whether the first-order difference is within the bound.
    """

    first_order: float
    paper: float
    corrected: float
    triangle: float
    paper_holds: bool
    corrected_holds: bool
    triangle_holds: bool


@dataclass(frozen=True)
class Theorem1:
    """The measured sharpness of a batch and of its kept part, with the bounds.

    Attributes:
        rho: radius of the perturbation.
        batch, kept, left: numbers of samples K, N and M = K - N.
        ptf: ``L_B(w + e_B) - L_B(w)``, all samples.
        pts: the same for the kept samples, with their own perturbation.
        difference: ``|PTF - PTS|``.
        remainder: ``|O(e_B^2) - O(e_kept^2)|``, what is left of PTF and PTS after the first-order terms.
        bounds: on the first-order difference.
        paper_holds: whether ``difference <= paper bound + remainder``, the theorem as stated.
        corrected_holds: the same with the corrected bound.
    """

    rho: float
    batch: int
    kept: int
    left: int
    ptf: float
    pts: float
    difference: float
    remainder: float
    bounds: Bounds
    paper_holds: bool
    corrected_holds: bool


def theorem1_bounds(gradients: Tensor, kept: Any, rho: float) -> Bounds:
    """Compute the paper's and the corrected bounds from per-sample gradients.

        g_B = (N g_kept + M g_left) / K,  so  g_B - g_kept = (M/K) (g_left - g_kept)
        | |g_B| - |g_kept| |  <=  |g_B - g_kept|  =  (M/K) |g_left - g_kept|

    The paper's proof writes ``g_B = g_kept + g_left`` and so obtains ``mean_left |g_i|``. If the samples left out have
    zero gradients, its bound is zero, but the difference is ``rho (M/K) |g_kept|``:

    >>> import torch
    >>> from ausam_lab.paper.theory import theorem1_bounds
    >>> bounds = theorem1_bounds(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), kept=[0], rho=0.1)
    >>> bounds.first_order, bounds.paper, bounds.corrected
    (0.05, 0.0, 0.05)

    Arguments:
        gradients: one row per sample of the batch.
        kept: positions of the samples that are kept, at least one and not all.
        rho: radius of the perturbation, > 0.
    """
    rho = positive("rho", rho)
    g = gradients.double()
    mask = _mask(kept, len(g))
    norms = torch.linalg.vector_norm(g, dim=1)
    return _bounds(g[mask].mean(0), g[~mask].mean(0), float(norms[mask].mean()), float(norms[~mask].mean()), mask, rho)


def theorem1(model: nn.Module, loss_fn: LossFn, batch: Batch, kept: Any, rho: float, *, chunk: int = 32) -> Theorem1:
    """Measure PTF, PTS, their difference and the bounds on one mini-batch.

        |PTF - PTS| <= bound + |O(e_B^2) - O(e_kept^2)|

    Theorem 1 of Deng et al., AAAI 2025; the corrected bound is proved in docs/results/theory.md.

    >>> import torch, torch.nn.functional as F
    >>> from ausam_lab.paper.theory import theorem1
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(4, 3)
    >>> losses = lambda x, y: F.cross_entropy(model(x), y, reduction="none")
    >>> result = theorem1(model, losses, (torch.randn(8, 4), torch.randint(3, (8,))), kept=[0, 2, 5, 6], rho=0.05)
    >>> result.corrected_holds
    True

    Arguments:
        model: the network, measured in eval mode (see :func:`ausam.diagnostics.sample_gradients`).
        loss_fn: ``loss_fn(*batch)`` returns per-sample losses, as for ``opt.backward``.
        batch: one mini-batch, the tuple that ``loss_fn`` takes.
        kept: positions in the batch of the samples that a policy keeps, at least one and not all.
        rho: radius of the perturbation, > 0.
        chunk: samples differentiated at once, >= 1.

    Cost: a gradient per sample and four forward passes. Memory: chunk x P.
    """
    rho = positive("rho", rho)
    n = size(batch)
    mask = _mask(kept, n)
    with untouched(model):
        every = Objective(model, loss_fn, [batch], chunk=chunk)
        some = Objective(model, loss_fn, [rows(batch, mask.nonzero()[:, 0], n)], chunk=chunk)
        sums = [torch.zeros(every.size, dtype=torch.float64, device=every.params[0].device) for _ in range(2)]
        norms, done = [], 0
        for part in gradient_rows(every):
            chosen = mask[done : done + len(part)].to(part.device)
            sums[0] += part[chosen].double().sum(0)
            sums[1] += part[~chosen].double().sum(0)
            norms.append(torch.linalg.vector_norm(part.double(), dim=1).cpu())
            done += len(part)
        n_kept = int(mask.sum())
        length = torch.cat(norms)
        g_kept, g_left = sums[0] / n_kept, sums[1] / (n - n_kept)
        bounds = _bounds(g_kept, g_left, float(length[mask].mean()), float(length[~mask].mean()), mask, rho)
        g_batch = (sums[0] + sums[1]) / n
        (ptf, o_batch), (pts, o_kept) = (_rise(o, g, rho) for o, g in ((every, g_batch), (some, g_kept)))
    difference, remainder = abs(ptf - pts), abs(o_batch - o_kept)
    slack = ROUNDING * (abs(ptf) + abs(pts) + bounds.triangle)
    return Theorem1(
        rho=rho,
        batch=n,
        kept=n_kept,
        left=n - n_kept,
        ptf=ptf,
        pts=pts,
        difference=difference,
        remainder=remainder,
        bounds=bounds,
        paper_holds=difference <= bounds.paper + remainder + slack,
        corrected_holds=difference <= bounds.corrected + remainder + slack,
    )


@dataclass(frozen=True)
class Theorem1Summary:
    """Theorem 1 over many batches.

    Attributes:
        batches: number of batches.
        paper_fails: fraction in which the paper's bound fails as stated (with the measured remainder).
        paper_fails_first_order: fraction in which it is below the first-order difference.
        corrected_fails: fraction in which the corrected bound fails; 0 apart from rounding.
        difference, paper, corrected, triangle: means over the batches.
        paper_tightness, corrected_tightness: mean first-order difference / mean bound; above 1, the bound fails on
            average.
    """

    batches: int
    paper_fails: float
    paper_fails_first_order: float
    corrected_fails: float
    difference: float
    paper: float
    corrected: float
    triangle: float
    paper_tightness: float
    corrected_tightness: float


def theorem1_summary(results: Sequence[Theorem1]) -> Theorem1Summary:
    """Summarise theorem 1 over batches: how often each bound fails and how tight it is.

    Arguments:
        results: results of :func:`theorem1`, at least one.
    """
    if not results:
        raise ValueError("results is empty: there is no result of theorem1 to summarise.")

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    first = mean([f.bounds.first_order for f in results])
    paper, corrected = mean([f.bounds.paper for f in results]), mean([f.bounds.corrected for f in results])
    return Theorem1Summary(
        batches=len(results),
        paper_fails=mean([not f.paper_holds for f in results]),
        paper_fails_first_order=mean([not f.bounds.paper_holds for f in results]),
        corrected_fails=mean([not (f.corrected_holds and f.bounds.corrected_holds) for f in results]),
        difference=mean([f.difference for f in results]),
        paper=paper,
        corrected=corrected,
        triangle=mean([f.bounds.triangle for f in results]),
        paper_tightness=first / paper if paper else float("inf"),
        corrected_tightness=first / corrected if corrected else float("nan"),
    )


def _rise(objective: Objective, gradient: Tensor, rho: float) -> tuple[float, float]:
    """``L(w + e) - L(w)``, and the same minus its first-order term ``rho |g|``. A zero gradient perturbs nothing."""
    length = float(torch.linalg.vector_norm(gradient))
    e = (rho / length * gradient).to(objective.params[0].dtype) if length else torch.zeros_like(objective.weights())
    # Subtract sample by sample before averaging: less rounding than the difference of two means.
    rise = float((objective.losses(e).double() - objective.losses().double()).mean())
    return rise, rise - rho * length


def _bounds(g_kept: Tensor, g_left: Tensor, kept: float, left: float, mask: Tensor, rho: float) -> Bounds:
    k = len(mask)
    m = k - int(mask.sum())
    g_batch = ((k - m) * g_kept + m * g_left) / k
    first = rho * abs(float(torch.linalg.vector_norm(g_batch) - torch.linalg.vector_norm(g_kept)))
    paper = rho * left
    corrected = rho * m / k * float(torch.linalg.vector_norm(g_left - g_kept))
    triangle = rho * m / k * (left + kept)
    slack = 1e-12 * (triangle + paper)
    return Bounds(
        first_order=first,
        paper=paper,
        corrected=corrected,
        triangle=triangle,
        paper_holds=first <= paper + slack,
        corrected_holds=first <= corrected + slack,
        triangle_holds=corrected <= triangle + slack,
    )


def _mask(kept: Any, n: int) -> Tensor:
    positions = torch.as_tensor(kept).flatten().cpu()
    if positions.is_floating_point() or positions.dtype == torch.bool:
        raise TypeError(f"kept has dtype {positions.dtype}, not that of positions. Convert a mask with mask.nonzero().")
    if len(positions) and not (int(positions.min()) >= 0 and int(positions.max()) < n):
        raise ValueError(f"kept holds positions outside the batch of {n} samples. Pass positions, not dataset indices.")
    mask = torch.zeros(n, dtype=torch.bool)
    mask[positions] = True
    if int(mask.sum()) < len(positions):
        raise ValueError("kept names a position twice, but theorem 1 is about samples that are kept or left out.")
    if not 0 < int(mask.sum()) < n:
        raise ValueError(
            f"kept names {int(mask.sum())} of {n} samples, but theorem 1 compares kept samples with the rest. Keep "
            "some, not all."
        )
    return mask
