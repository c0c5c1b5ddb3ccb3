"""Ordinary training: the gradient at the weights, for selection without a SAM method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ausam.common.tensors import Vector

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class Plain:
    """The base optimizer alone: ``g = grad L(w)``.

    >>> import torch
    >>> from ausam import Plain, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), Plain(), model)

    Use it for baselines, and to train with a selection policy that ranks by loss. Cost: one forward-backward.
    """

    sharpness: ClassVar[str] = "never"
    passes: ClassVar[tuple[float, float]] = (1.0, 1.0)

    def gradient(self, step: Step) -> Vector:
        """``grad L(w)``."""
        return step.gradient()
