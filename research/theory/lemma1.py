"""Lemma 1: the loss change under SAM's perturbation, divided by rho, is the norm of a sample's gradient.

    python -m research.theory.lemma1            # measure on digits, write part "lemma1" of digits.json
    python -m research.theory.lemma1 --smoke    # the same in seconds, and nothing is written

It is not: to first order it is the length of the gradient's projection on the batch gradient. An average over epochs
projects on many directions and ranks samples much better.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np
import torch
from research.theory.digits import RHO, Settings, main, sharpness_aware
from research.theory.gradients import Agreement, PerSample, agreement
from torch import Tensor, nn

from ausam import Scores


@dataclass(frozen=True)
class Lemma1:
    """DLP / rho compared with what the lemma says it estimates, and with what it does estimate.

    Attributes:
        norm: agreement with the sample's gradient norm, which is the lemma's claim.
        projection: agreement with the projection on the batch gradient, ``|cos| * norm``: the first-order term.
        cosine: mean over samples of ``|cos(g_i, g_B)|``, the factor that the lemma drops.
        dlp: ``|L_i(w + e_B) - L_i(w)| / rho`` of each sample.
        norms: ``|g_i|`` of each sample.
        projections: ``|<g_i, g_B>| / |g_B|`` of each sample.
    """

    norm: Agreement
    projection: Agreement
    cosine: float
    dlp: Tensor
    norms: Tensor
    projections: Tensor


def lemma1(model: nn.Module, loss_fn, batches: Iterable[tuple[Tensor, ...]], rho: float) -> Lemma1:
    """Compare DLP / rho of each sample with its gradient norm and with the gradient's projection.

        e_B = rho g_B / |g_B|,   DLP_i = |L_i(w + e_B) - L_i(w)|
        the lemma:      DLP_i / rho ~ |g_i|
        Taylor's term:  DLP_i / rho = |<g_i, g_B>| / |g_B| + O(rho) = |cos(g_i, g_B)| |g_i| + O(rho)

    Each mini-batch has its own perturbation, as in training.
    """
    samples = PerSample(model, loss_fn)
    w = samples.weights()
    dlp, norms, projections = [], [], []
    for batch in batches:
        gradients = samples.gradients(batch)
        unit = gradients.mean(0) / gradients.mean(0).norm()
        perturbed = w + (rho * unit).to(w.dtype)
        dlp.append((samples.losses(batch, perturbed) - samples.losses(batch)).abs().double() / rho)
        norms.append(gradients.norm(dim=1))
        projections.append((gradients @ unit).abs())
    d, n, p = (torch.cat(parts) for parts in (dlp, norms, projections))
    return Lemma1(agreement(d, n), agreement(d, p), float((p / n.clamp_min(1e-30)).mean()), d, n, p)


@dataclass(frozen=True)
class AverageDLP:
    """Averages of DLP / rho over epochs, compared with the current gradient norms.

    Attributes:
        mean: the mean of all visits, the paper's ADLP (equation 5).
        ema: the exponential moving average, which forgets old visits: ``AUSampling(ema=0.7)``.
        last: the latest visit alone.
        visits: mean number of visits per sample.
    """

    mean: Agreement
    ema: Agreement
    last: Agreement
    visits: float


def average_dlp(history: np.ndarray, norms: Tensor, rho: float, *, decay: float = 0.7) -> AverageDLP:
    """How well averages of DLP over past epochs approximate the current gradient norms.

    Arguments:
        history: DLP of each epoch (rows) and sample (columns); NaN where a sample was not visited.
        norms: the current gradient norm of each sample.
        rho: radius of the perturbations.
        decay: weight of the past in the moving average.
    """
    averages = []
    for weight in (1.0, decay, 0.0):
        scores = Scores(len(norms), weight)
        for row in history:
            scores.record(torch.arange(len(norms)), torch.from_numpy(row))
        averages.append(agreement(scores.mean.double() / rho, norms))
    return AverageDLP(*averages, visits=float((~np.isnan(history)).sum(0).mean()))


def measure(settings: Settings) -> dict:
    """DLP against the gradient norm and against the projection, over training and over rho."""
    over_training, averages = [], []
    runs = sharpness_aware(settings)
    for name, run in runs.items():
        for epoch in settings.watched:
            run.at(epoch)
            lemma = lemma1(run.model, run.losses, run.batches(8), RHO)
            rows = {"norm": asdict(lemma.norm), "projection": asdict(lemma.projection)}
            over_training.append({"run": name, "epoch": epoch, "cosine": lemma.cosine, **rows})
            if epoch >= 1:
                norms = PerSample(run.model, run.losses).gradients((run.data.x, run.data.y)).norm(dim=1)
                average = average_dlp(run.dlp[:epoch], norms, RHO)
                averages.append({"run": name, "epoch": epoch, **asdict(average)})
    run = runs["SAM 0"]
    run.at(min(8, settings.epochs))
    over_rho, points = [], []
    for rho in (0.001, 0.005, 0.02, 0.05, 0.1, RHO, 0.5):
        lemma = lemma1(run.model, run.losses, run.batches(8), rho)
        over_rho.append({"rho": rho, "norm": asdict(lemma.norm), "projection": asdict(lemma.projection)})
        if rho == RHO:
            both = zip(lemma.dlp.tolist(), lemma.norms.tolist(), lemma.projections.tolist(), strict=True)
            points = [{"dlp": d, "norm": n, "projection": p} for d, n, p in both]
    return {"over_training": over_training, "averages": averages, "over_rho": over_rho, "points": points}


if __name__ == "__main__":
    main("lemma1", measure)
