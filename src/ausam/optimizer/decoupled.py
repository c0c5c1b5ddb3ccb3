"""Decoupled: an update beside the base's own, as AdamW's weight decay is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ausam.common.tensors import Vector, norm, scale


@dataclass(frozen=True)
class Decoupled:
    """A vector ``v`` that is subtracted after the base's step, times the learning rate: ``w -= lr * v``.

    It shares the fate of ``.grad``. Whatever happens to that between ``backward`` and ``step`` (a GradScaler divides it
    by its scale, clipping shortens it, a loop divides it by the number of micro-batches or clears it) is one factor:
    its length now, divided by its length when ``backward`` returned. ``v`` is multiplied by the same factor.

    Arguments:
        params: the trained parameters.
        vector: an entry for each of them.
        length: of their ``.grad`` when ``backward`` returned.
    """

    params: Sequence[Tensor]
    vector: Vector
    length: Tensor

    def now(self, gradient: Vector) -> Vector:
        """The vector, after what has become of the gradient; ``gradient`` is what ``.grad`` holds now."""
        factor = norm(gradient).to(self.length.device) / self.length
        # Nothing is left of a gradient of length zero, or of one that is not finite.
        return scale(self.vector, factor.nan_to_num(nan=0.0, posinf=0.0))

    @torch.no_grad()
    def subtract(self, vector: Vector, groups: Sequence[dict[str, Any]]) -> None:
        """``w -= lr * vector``, with the learning rate of each group."""
        entry = dict(zip(self.params, vector, strict=True))
        for group in groups:
            params = [p for p in group["params"] if entry.get(p) is not None]
            update = scale([entry[p] for p in params], -group["lr"] if group.get("maximize") else group["lr"])
            for p, u in zip(params, update, strict=True):
                p.sub_(u)
