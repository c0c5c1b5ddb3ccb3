"""Momentum-SAM (Becker, Altrock, Risse, 2024), in the form of its official code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ausam.common.settings import NonNegative
from ausam.common.tensors import Vector, ascent, present, scale
from ausam.methods._base import Settings

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class MomentumSAM(Settings):
    """The gradient at weights moved along the existing momentum: sharpness-aware at the cost of SGD.

        the step uses  grad L(w - rho * v / |v|),  v the base optimizer's momentum (SGD) or first moment (Adam)

    Note the minus: the weights move in the direction of the next step. The first step has no v and moves nothing.

    Becker, Altrock, Risse: Momentum-SAM: Sharpness Aware Minimization without Computational Overhead, 2024.

    >>> import torch
    >>> from ausam import MomentumSAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> opt = SharpnessAware(base, MomentumSAM(rho=3.0), model)

    Arguments:
        rho: radius, >= 0, over all parameters together. An order of magnitude above SAM's (the authors: 3 for
            CIFAR-100 and ImageNet). A parameter group may have its own ``rho``.

    Use it with momentum, when a second pass is too expensive. Each sample's loss is measured only at the moved weights.
    The feedback reports it as the loss. Cost: one forward-backward.
    """

    rho: NonNegative = 3.0
    sharpness: ClassVar[str] = "never"
    passes: ClassVar[tuple[float, float]] = (1.0, 1.0)

    def gradient(self, step: Step) -> Vector:
        """``grad L(w - rho v / |v|)``."""
        v = step.momentum
        if not present(v):
            if step.number > 0:
                raise RuntimeError(
                    "MomentumSAM: the base optimizer has taken a step but has no momentum to move along. "
                    "Use SGD(..., momentum=0.9), Adam or AdamW."
                )
            return step.gradient()
        # Policies that rank by loss get the measured one, and nothing treats it as sharpness.
        with step.shifted(scale(ascent(v, step.radius(self.rho)), -1.0), measures="loss"):
            return step.gradient()
