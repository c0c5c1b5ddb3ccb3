"""Lemma 1 as a measure of :class:`ausam.diagnostics.Diagnostics`, to be followed during training."""

from __future__ import annotations

from torch import nn

from ausam.diagnostics.batches import Batch
from ausam.diagnostics.callback import Measure, Row
from ausam.diagnostics.objective import LossFn
from ausam.paper.theory.lemma1 import lemma1


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
