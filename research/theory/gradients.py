"""What the theorems are about: the losses and gradients of single samples, at any weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import scipy.stats
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parameters_to_vector

CHUNK = 128  # samples differentiated at once


class PerSample(nn.Module):
    """Per-sample losses of a model as a function of its weights, given as one vector.

    ``loss_fn(*batch)`` calls the model and returns one loss per sample, as for ``opt.backward``. The model must be a
    fixed function of its weights: no dropout, and BatchNorm in eval mode.
    """

    def __init__(self, model: nn.Module, loss_fn: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.loss_fn = model, loss_fn

    def forward(self, *batch: Tensor) -> Tensor:
        return self.loss_fn(*batch)

    def weights(self, state: Mapping[str, Tensor] | None = None) -> Tensor:
        """The weights as a vector: the model's own, or those of a state_dict."""
        named = dict(self.model.named_parameters()) if state is None else state
        return parameters_to_vector([named[name].detach() for name, _ in self.model.named_parameters()])

    def losses(self, batch: tuple[Tensor, ...], weights: Tensor | None = None) -> Tensor:
        """The loss of every sample."""
        with torch.no_grad():
            return self._call(self.weights() if weights is None else weights, *batch)

    def gradients(self, batch: tuple[Tensor, ...], weights: Tensor | None = None) -> Tensor:
        """The gradient of every sample's loss in double precision, one row per sample."""

        def loss_of_one(w: Tensor, *sample: Tensor) -> Tensor:
            return self._call(w, *(part[None] for part in sample))[0]

        at = self.weights() if weights is None else weights
        every = vmap(grad(loss_of_one), in_dims=(None, *([0] * len(batch))), chunk_size=CHUNK)
        return every(at, *batch).double()

    def _call(self, weights: Tensor, *batch: Tensor) -> Tensor:
        named = list(self.model.named_parameters())
        parts = weights.split([p.numel() for _, p in named])
        return functional_call(
            self, {f"model.{name}": v.view_as(p) for (name, p), v in zip(named, parts, strict=True)}, batch
        )


@dataclass(frozen=True)
class Agreement:
    """How well an estimate approximates the truth, over samples.

    Attributes:
        pearson: linear correlation.
        spearman: rank correlation; this is what matters if the estimate is only used for ranking.
        relative_error: ``mean |estimate - truth| / mean |truth|``.
        ratio: ``mean estimate / mean truth``; below 1, the estimate is too small.
        samples: number of pairs.
    """

    pearson: float
    spearman: float
    relative_error: float
    ratio: float
    samples: int


def agreement(estimate: Tensor, truth: Tensor) -> Agreement:
    """Correlations and relative error of an estimate; pairs with a NaN are ignored."""
    a, b = (np.asarray(values, dtype=float) for values in (estimate, truth))
    both = ~(np.isnan(a) | np.isnan(b))
    a, b = a[both], b[both]
    return Agreement(
        pearson=float(scipy.stats.pearsonr(a, b).statistic),
        spearman=float(scipy.stats.spearmanr(a, b).statistic),
        relative_error=float(np.abs(a - b).mean() / np.abs(b).mean()),
        ratio=float(a.mean() / b.mean()),
        samples=len(a),
    )
