"""Lemma 1: the loss change under SAM's perturbation as an estimate of the norm of a sample's gradient."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ausam.diagnostics.arguments import positive
from ausam.diagnostics.batches import Batch
from ausam.diagnostics.callback import Measure, Row
from ausam.diagnostics.geometry import direction
from ausam.diagnostics.objective import LossFn, Objective
from ausam.diagnostics.samples import gradient_rows
from ausam.diagnostics.statistics import Agreement, agreement, array, numbers
from ausam.diagnostics.untouched import untouched
from ausam.sampler import Scores


@dataclass(frozen=True)
class Lemma1:
    """DLP / rho compared with what the lemma says it estimates, and with what it does estimate.

    Attributes:
        rho: radius of the perturbation.
        norm: agreement with the sample's gradient norm, which is the lemma's claim.
        projection: agreement with the projection on the batch gradient, ``|cos| * norm``: the first-order term.
        cosine: mean over samples of ``|cos(g_i, g_B)|``, the factor that the lemma drops.
        dlp: ``|L_i(w + e_B) - L_i(w)| / rho`` of each sample.
        norms: ``|g_i|`` of each sample.
        projections: ``|<g_i, g_B>| / |g_B|`` of each sample.
    """

    rho: float
    norm: Agreement
    projection: Agreement
    cosine: float
    dlp: tuple[float, ...]
    norms: tuple[float, ...]
    projections: tuple[float, ...]


def lemma1(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Iterable[Batch],
    rho: float,
    *,
    chunk: int = 32,
    samples: int | None = None,
) -> Lemma1:
    """Compare DLP / rho of each sample with its gradient norm and with the gradient's projection.

        e_B = rho g_B / |g_B|,   DLP_i = |L_i(w + e_B) - L_i(w)|
        the lemma:      DLP_i / rho ~ |g_i|
        Taylor's term:  DLP_i / rho = |<g_i, g_B>| / |g_B| + O(rho) = |cos(g_i, g_B)| |g_i| + O(rho)

    Lemma 1 of Deng et al., AAAI 2025. The two agree only where a sample's gradient is parallel to the batch gradient.

    >>> import torch, torch.nn.functional as F
    >>> from ausam_lab.paper.theory import lemma1
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(4, 3)
    >>> losses = lambda x, y: F.cross_entropy(model(x), y, reduction="none")
    >>> result = lemma1(model, losses, [(torch.randn(32, 4), torch.randint(3, (32,)))], rho=0.01)
    >>> result.projection.relative_error < 0.05 < result.norm.relative_error
    True

    Arguments:
        model: the network, measured in eval mode (see :func:`ausam.diagnostics.sample_gradients`).
        loss_fn: ``loss_fn(*batch)`` returns per-sample losses, as for ``opt.backward``.
        batches: the mini-batches, each with its own perturbation, as in training.
        rho: radius of the perturbation, > 0.
        chunk: samples differentiated at once, >= 1.
        samples: how many samples to use, from the first; None for all.

    Cost: a gradient per sample; a gradient and two forward passes per batch. Memory: chunk x P.
    """
    rho = positive("rho", rho)
    dlp, norms, projections = [], [], []
    with untouched(model):
        every = Objective(model, loss_fn, batches, chunk=chunk, samples=samples)
        for objective in (every.on(batch) for batch in every.batches):
            unit = direction(objective.gradient())
            dlp.append((objective.losses(rho * unit) - objective.losses()).abs() / rho)
            for gradients in gradient_rows(objective):
                norms.append(torch.linalg.vector_norm(gradients, dim=1))
                projections.append((gradients @ unit).abs())
    d, n, p = (torch.cat(parts).double() for parts in (dlp, norms, projections))
    return Lemma1(
        rho=rho,
        norm=agreement(d, n),
        projection=agreement(d, p),
        cosine=float((p / n.clamp_min(1e-30)).mean()),
        dlp=numbers(d),
        norms=numbers(n),
        projections=numbers(p),
    )


@dataclass(frozen=True)
class AverageDLP:
    """Averages of DLP / rho over epochs, compared with the current gradient norms.

    Attributes:
        mean: the mean of all visits, the paper's ADLP.
        ema: the exponential moving average, which forgets old visits.
        last: the latest visit alone.
        decay: weight of the past in ``ema``.
        visits: mean number of visits per sample.
    """

    mean: Agreement
    ema: Agreement
    last: Agreement
    decay: float
    visits: float


def average_dlp(history: Any, norms: Any, rho: float, *, decay: float = 0.7) -> AverageDLP:
    """How well averages of DLP over past epochs approximate the current gradient norms.

        ADLP_i = 1/(T-1) sum_t DLP_i(t)        against |grad L_i(w_T)|

    Equation 5 of Deng et al., AAAI 2025, and ``AUSampling(ema=decay)``.

    >>> from ausam_lab.paper.theory import average_dlp
    >>> history = [[0.4, 0.1, 0.2], [0.02, 0.05, 0.04]]       # two epochs, three samples: early values are large
    >>> averages = average_dlp(history, norms=[0.1, 0.6, 0.4], rho=0.1, decay=0.5)
    >>> averages.last.spearman, averages.mean.spearman
    (1.0, -1.0)

    Arguments:
        history: DLP of each epoch (rows) and sample (columns); NaN where a sample was not visited.
        norms: the current gradient norm of each sample.
        rho: radius of the perturbations, > 0.
        decay: weight of the past in the moving average, in (0, 1).

    Cost: negligible. Compute the norms with :func:`ausam.diagnostics.sample_gradient_norms`.
    """
    rho = positive("rho", rho)
    if not 0 < decay < 1:
        raise ValueError(f"decay is {decay}. It is the weight of the past in a moving average, so 0 < decay < 1.")
    past, now = array(history), array(norms)
    if past.ndim != 2 or past.shape[1:] != now.shape:
        raise ValueError(f"history has shape {past.shape} and norms {now.shape}; (epochs, n) and (n,) are needed.")
    averages = []
    for weight in (1.0, decay, 0.0):
        scores = Scores(len(now), weight)
        for row in past:
            scores.record(torch.arange(len(now)), torch.from_numpy(np.asarray(row)))
        averages.append(agreement(scores.mean.double() / rho, now))
    mean, ema, last = averages
    return AverageDLP(mean, ema, last, decay, float((~np.isnan(past)).sum(0).mean()))


def _lemma1(model: nn.Module, loss_fn: LossFn, batches: list[Batch], rho: float, seed: int) -> Row:  # noqa: ARG001
    result = lemma1(model, loss_fn, batches, rho)
    return {
        "dlp_norm_spearman": result.norm.spearman,
        "dlp_projection_spearman": result.projection.spearman,
        "cosine_of_samples": result.cosine,
    }


# Rank correlation of DLP with the gradient norm and with the projection; mean cosine of sample and batch gradients.
# It costs a gradient per sample. Diagnostics offers it once you say so: MEASURES["lemma1"] = lemma1_measure
lemma1_measure: Measure = (_lemma1, ("dlp_norm_spearman", "dlp_projection_spearman", "cosine_of_samples"))
