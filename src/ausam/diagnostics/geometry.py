"""The geometry of a step: SAM's gradient compared with the plain one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ausam.diagnostics.objective import Batch, LossFn, Objective, eval_mode, positive


@dataclass(frozen=True)
class StepGeometry:
    """How SAM's gradient relates to the plain one.

    Attributes:
        gradient_norm: ``|g|``, at w.
        sam_norm: ``|g_SAM|``, at w + e.
        cosine: ``cos(g, g_SAM)``.
        descent: ``<g, g_SAM> / |g|^2``, the first-order decrease in loss of SAM's step relative to a plain step.
        orthogonal: ``sin(g, g_SAM)``, the fraction of g_SAM's length at right angles to g.
        loss, perturbed: mean loss at w and at w + e.
        loss_rank: Spearman's correlation, over samples, of the loss at w with ``|L_i(w + e) - L_i(w)|``. Near 1,
            pruning by loss keeps what AUSAM would keep. The paper argues that it does not. NaN where one is constant.
    """

    gradient_norm: float
    sam_norm: float
    cosine: float
    descent: float
    orthogonal: float
    loss: float
    perturbed: float
    loss_rank: float


def step_geometry(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Sequence[Batch],
    rho: float,
    *,
    chunk: int = 256,
) -> StepGeometry:
    """Compare SAM's gradient with the plain one on the same samples.

        g = grad L(w),   g_SAM = grad L(w + rho g / |g|)

    >>> import torch
    >>> from ausam.diagnostics import step_geometry
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)                           # L(w) = w^2 / 2, so g = w
    >>> geometry = step_geometry(model, lambda x: model(x).square().sum(1) / 2, [(torch.ones(1, 1),)], rho=0.5)
    >>> round(geometry.cosine, 4), round(geometry.descent, 4)
    (1.0, 1.5)

    Arguments:
        model: the network, measured in eval mode.
        loss_fn: ``loss_fn(*batch)`` returns per-sample losses, as for ``opt.backward``.
        batches: the samples, taken together as one batch.
        rho: radius of the perturbation, > 0.
        chunk: samples per pass, >= 1.

    Cost: two forward-backward and two forward passes. Memory: 3 x P.
    """
    rho = positive("rho", rho)
    with eval_mode(model):
        objective = Objective(model, loss_fn, batches, chunk=chunk)
        g = objective.gradient()
        e = rho * direction(g)
        sam = objective.gradient(e)
        loss, perturbed = objective.losses().double(), objective.losses(e).double()
    g, sam = g.double(), sam.double()
    size, sam_size = float(torch.linalg.vector_norm(g)), float(torch.linalg.vector_norm(sam))
    inner = float(g @ sam)
    cosine = max(-1.0, min(1.0, inner / (size * sam_size))) if sam_size else float("nan")
    return StepGeometry(
        gradient_norm=size,
        sam_norm=sam_size,
        cosine=cosine,
        descent=inner / size**2,
        orthogonal=(1 - cosine**2) ** 0.5,
        loss=float(loss.mean()),
        perturbed=float(perturbed.mean()),
        loss_rank=spearman(loss, (perturbed - loss).abs()),
    )


def direction(gradient: Tensor) -> Tensor:
    """The direction of a gradient. A zero gradient has none and raises an error."""
    size = torch.linalg.vector_norm(gradient)
    if not bool(size > 0) or not bool(size.isfinite()):
        raise ValueError(
            f"The batch gradient has norm {float(size)}, so there is no direction to perturb in. "
            "Measure while the loss is finite and before the model fits the batch exactly."
        )
    unit: Tensor = gradient / size
    return unit


def spearman(a: Tensor, b: Tensor) -> float:
    """Correlation of the ranks, over samples. Equal values share the mean of their ranks. NaN if one is constant.

    >>> spearman(torch.tensor([1.0, 2.0, 2.0, 9.0]), torch.tensor([1.0, 3.0, 3.0, 4.0]))
    1.0
    """
    ranks = []
    for values in (a, b):
        _, where, counts = np.unique(values.cpu().numpy(), return_inverse=True, return_counts=True)
        if len(counts) < 2:
            return float("nan")
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[where])
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1].round(12))
