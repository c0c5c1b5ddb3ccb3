"""Theorem 1: leave out samples with small gradients, and a mini-batch keeps its sharpness.

    python -m research.theory.theorem1            # measure on digits, write part "theorem1" of digits.json
    python -m research.theory.theorem1 --smoke    # the same in seconds, and nothing is written

The theorem's bound can be too small: its proof writes the mean of a batch as the sum, not the weighted mean, of the
means of its parts. The corrected bound always holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from research.theory.digits import BATCH, RHO, Settings, main, sharpness_aware
from research.theory.gradients import PerSample
from torch import Tensor, nn

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


def bounds(gradients: Tensor, kept: Sequence[int] | Tensor, rho: float) -> Bounds:
    """Compute the paper's and the corrected bounds from per-sample gradients, one row per sample.

        g_B = (N g_kept + M g_left) / K,  so  g_B - g_kept = (M/K) (g_left - g_kept)
        | |g_B| - |g_kept| |  <=  |g_B - g_kept|  =  (M/K) |g_left - g_kept|

    The paper's proof writes ``g_B = g_kept + g_left`` and so obtains ``mean_left |g_i|``. If the samples left out have
    zero gradients, its bound is zero, but the difference is ``rho (M/K) |g_kept|``:

    >>> result = bounds(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), [0], rho=0.1)
    >>> result.first_order, result.paper, result.corrected
    (0.05, 0.0, 0.05)
    """
    g = gradients.double()
    mask = kept_mask(kept, len(g))
    k, m = len(g), int((~mask).sum())
    norms = g.norm(dim=1)
    left, kept_norm = float(norms[~mask].mean()), float(norms[mask].mean())
    first = rho * abs(float(g.mean(0).norm() - g[mask].mean(0).norm()))
    paper = rho * left
    corrected = rho * m / k * float((g[~mask].mean(0) - g[mask].mean(0)).norm())
    triangle = rho * m / k * (left + kept_norm)
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


def kept_mask(kept: Sequence[int] | Tensor, n: int) -> Tensor:
    """True for the positions that are kept: some, not all."""
    mask = torch.zeros(n, dtype=torch.bool)
    mask[torch.as_tensor(kept)] = True
    if not 0 < int(mask.sum()) < n:
        raise ValueError(f"{int(mask.sum())} of {n} samples are kept. Theorem 1 compares kept samples with the rest.")
    return mask


@dataclass(frozen=True)
class Theorem1:
    """The measured sharpness of a batch and of its kept part, with the bounds.

    Attributes:
        ptf: ``L_B(w + e_B) - L_B(w)``, all samples.
        pts: the same for the kept samples, with their own perturbation.
        difference: ``|PTF - PTS|``.
        remainder: ``|O(e_B^2) - O(e_kept^2)|``, what is left of PTF and PTS after the first-order terms.
        bounds: on the first-order difference.
        paper_holds: whether ``difference <= paper bound + remainder``, the theorem as stated.
        corrected_holds: the same with the corrected bound.
    """

    ptf: float
    pts: float
    difference: float
    remainder: float
    bounds: Bounds
    paper_holds: bool
    corrected_holds: bool


def theorem1(model: nn.Module, loss_fn, batch: tuple[Tensor, ...], kept, rho: float) -> Theorem1:
    """Measure PTF, PTS, their difference and the bounds on one mini-batch.

    |PTF - PTS| <= bound + |O(e_B^2) - O(e_kept^2)|
    """
    samples = PerSample(model, loss_fn)
    gradients = samples.gradients(batch)
    limit = bounds(gradients, kept, rho)
    mask = kept_mask(kept, len(gradients))
    ptf, o_batch = _rise(samples, batch, gradients.mean(0), rho)
    pts, o_kept = _rise(samples, tuple(part[mask] for part in batch), gradients[mask].mean(0), rho)
    difference, remainder = abs(ptf - pts), abs(o_batch - o_kept)
    slack = ROUNDING * (abs(ptf) + abs(pts) + limit.triangle)
    return Theorem1(
        ptf=ptf,
        pts=pts,
        difference=difference,
        remainder=remainder,
        bounds=limit,
        paper_holds=difference <= limit.paper + remainder + slack,
        corrected_holds=difference <= limit.corrected + remainder + slack,
    )


def _rise(samples: PerSample, batch: tuple[Tensor, ...], gradient: Tensor, rho: float) -> tuple[float, float]:
    """``L(w + e) - L(w)``, and the same minus its first-order term ``rho |g|``. A zero gradient perturbs nothing."""
    length, w = float(gradient.norm()), samples.weights()
    e = (rho / length * gradient if length else gradient).to(w.dtype)
    # Subtract sample by sample before averaging: less rounding than the difference of two means.
    rise = float((samples.losses(batch, w + e).double() - samples.losses(batch).double()).mean())
    return rise, rise - rho * length


def summary(results: Sequence[Theorem1]) -> dict[str, float]:
    """How often each bound fails over many batches, and how tight it is; tightness above 1 fails on average."""

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    first = mean([r.bounds.first_order for r in results])
    paper, corrected = mean([r.bounds.paper for r in results]), mean([r.bounds.corrected for r in results])
    return {
        "batches": len(results),
        "paper_fails": mean([not r.paper_holds for r in results]),
        "paper_fails_first_order": mean([not r.bounds.paper_holds for r in results]),
        "corrected_fails": mean([not (r.corrected_holds and r.bounds.corrected_holds) for r in results]),
        "difference": mean([r.difference for r in results]),
        "paper": paper,
        "corrected": corrected,
        "triangle": mean([r.bounds.triangle for r in results]),
        "paper_tightness": first / paper if paper else float("inf"),
        "corrected_tightness": first / corrected if corrected else float("nan"),
    }


def measure(settings: Settings) -> dict:
    """How often the bound fails on real mini-batches, with what each policy keeps."""
    rows = []
    for name, run in sharpness_aware(settings).items():
        for epoch in settings.watched[1:]:
            run.at(epoch)
            for policy_name, policy, scores in run.policies(epoch):
                if policy_name == "unbiased":
                    continue  # the same draw as AUSampling
                results = []
                for b, batch in enumerate(run.batches()):
                    candidates = torch.arange(b * BATCH, (b + 1) * BATCH)
                    rng = torch.Generator().manual_seed(1000 * epoch + b)
                    kept, _ = policy.choose(scores, epoch, candidates[None], rng)
                    results.append(theorem1(run.model, run.losses, batch, kept[0], RHO))
                rows.append({"run": name, "epoch": epoch, "policy": policy_name, **summary(results)})
    return {"over_training": rows}


if __name__ == "__main__":
    main("theorem1", measure)
