"""Surrogate-gap SAM (Zhuang et al., ICLR 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ausam.common.settings import NonNegative
from ausam.common.tensors import Vector, add, ascent, matching, orthogonal
from ausam.methods._base import Settings

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class GSAM(Settings):
    """SAM that also closes the gap between the perturbed loss and the loss.

        g = grad L(w),  g_s = grad L(w + rho g / |g|);   the step uses
        g_s - alpha * g_perp,   g_perp = g - (<g, g_s> / |g_s|^2) g_s

    Zhuang, Gong, Yuan, Cui, Adam, Dvornek, Tatikonda, Duncan, Liu: Surrogate Gap Minimization Improves Sharpness-Aware
    Training, ICLR 2022. Norms and inner products are over all parameters together.

    >>> import torch
    >>> from ausam import GSAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), GSAM(rho=0.05, alpha=0.4), model)

    Arguments:
        rho: radius of the perturbation, >= 0. In the paper it follows the learning rate: ``RhoSchedule(opt, "lr")``.
        alpha: how much of the orthogonal part is subtracted, >= 0. 0 is SAM. 0.4 in the authors' CIFAR example.

    Use it instead of SAM at the same cost. The paper's largest gains are on vision transformers. Both passes are
    averaged over processes, because their gradients are mixed. Cost: two forward-backwards.
    """

    rho: NonNegative = 0.05
    alpha: NonNegative = 0.4
    sharpness: ClassVar[str] = "always"
    passes: ClassVar[tuple[float, float]] = (2.0, 2.0)

    def gradient(self, step: Step) -> Vector:
        """``g_s - alpha * g_perp``."""
        return self.second(step, step.gradient())

    def second(self, step: Step, g: Vector) -> Vector:
        """The second pass, from ``g = grad L(w)``, which RST and AESAM already have."""
        with step.shifted(ascent(g, step.radius(self.rho))):
            g_s = step.gradient()
        # Where only the first pass has a gradient, g_perp cannot be subtracted: alone it would climb.
        return add(g_s, matching(orthogonal(g, g_s), g_s), -self.alpha)
