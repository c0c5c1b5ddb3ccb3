"""Friendly SAM (Li et al., CVPR 2024), in the form of its official code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ausam.common.settings import Decay, NonNegative
from ausam.common.tensors import Vector, add, ascent_, average, matching, scale
from ausam.methods._base import Settings

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class FriendlySAM(Settings):
    """SAM that climbs along the noise of the batch, without the direction that all batches share.

        d = g - sigma * m,  e = rho * d / |d|;   the step uses  grad L(w + e);   then  m := lmbda * m + (1 - lmbda) * g

    ``g = grad L(w)``, and ``m`` is the moving average of ``g`` before the step. The first step has d = g, m := g.

    Li, Zhou, He, Cheng, Huang: Friendly Sharpness-Aware Minimization, CVPR 2024.

    >>> import torch
    >>> from ausam import FriendlySAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), FriendlySAM(rho=0.2, lmbda=0.6), model)

    Arguments:
        rho: radius of the perturbation, >= 0. 0.2 in the authors' CIFAR-100 script.
        sigma: how much of the average is subtracted, >= 0. 0 is SAM.
        lmbda: decay of the average, in [0, 1). 0.9 in the authors' class, 0.6 in their CIFAR-100 script.

    Use it instead of SAM at the same cost. Each process averages its own gradients, because it perturbs by its own.
    Memory: one more copy of the weights. Cost: two forward-backwards.
    """

    rho: NonNegative = 0.05
    sigma: NonNegative = 1.0
    lmbda: Decay = 0.9
    sharpness: ClassVar[str] = "always"
    passes: ClassVar[tuple[float, float]] = (2.0, 2.0)

    def gradient(self, step: Step) -> Vector:
        """``grad L(w + e)``."""
        return self.second(step, step.gradient(sync=False))

    def second(self, step: Step, g: Vector) -> Vector:
        """The second pass, from ``g = grad L(w)``, which RST and AESAM already have. Overwrites ``g``."""
        m: Vector = step.state.get("average") or [None] * len(g)
        # The average uses the raw gradient, not d, without the loss scale, which may change.
        d = add(g, matching(m, g), -self.sigma * step.scale)
        step.state["average"] = average(m, scale(g, 1.0 / step.scale), self.lmbda)
        with step.shifted(ascent_(d, step.radius(self.rho))):
            return step.gradient()
