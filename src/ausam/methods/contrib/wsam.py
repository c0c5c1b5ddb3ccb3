"""Weighted sharpness (Yue et al., KDD 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ausam.common.settings import Decay, Flag, NonNegative
from ausam.common.tensors import Vector, add, ascent, matching, scale
from ausam.methods._base import Settings

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class WSAM(Settings):
    """SAM with its sharpness as a regulariser of adjustable weight.

        L + alpha * [L(w + e) - L(w)],   e = rho * g / |g|,  alpha = gamma / (1 - gamma),  g_s = grad L(w + e)
        decoupled:  the base steps with g, then  w -= lr * alpha * (g_s - g)
        coupled:    the base steps with  (1 - alpha) * g + alpha * g_s

    Yue, Jiang, Ye, Gao, Liu, Zhang: Sharpness-Aware Minimization Revisited: Weighted Sharpness as a Regularization
    Term, KDD 2023.

    >>> import torch
    >>> from ausam import SharpnessAware, WSAM
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), WSAM(rho=0.05, gamma=0.9), model)

    Arguments:
        rho: radius of the perturbation, >= 0.
        gamma: weight of the sharpness, in [0, 1). 0 is the base optimizer, 0.5 weighs it as SAM does, 0.9 (default)
            nine times as much. 0.8 to 0.95 is reported to work best.
        decouple: whether the sharpness stays outside the base's momentum and scaling, as the authors' default does.
            False: the base steps with the mixture, in which momentum 0.9 adds up the sharpness ten times.

    Use it where SAM gives sharpness too little or too much weight. Both passes are averaged over processes, because
    their gradients are mixed. Memory: one more copy of the weights. Cost: two forward-backwards.
    """

    rho: NonNegative = 0.05
    gamma: Decay = 0.9
    decouple: Flag = True
    sharpness: ClassVar[str] = "always"
    passes: ClassVar[tuple[float, float]] = (2.0, 2.0)

    def gradient(self, step: Step) -> Vector:
        """``g``, and the sharpness beside it. Coupled, ``(1 - alpha) * g + alpha * g_s``."""
        return self.second(step, step.gradient())

    def second(self, step: Step, g: Vector) -> Vector:
        """The second pass, from ``g = grad L(w)``, which RST and AESAM already have."""
        with step.shifted(ascent(g, step.radius(self.rho))):
            g_s = step.gradient()
        alpha = self.gamma / (1.0 - self.gamma)
        if self.decouple:
            both = matching(g, g_s)
            step.decouple(scale(add(matching(g_s, both), both, -1.0), alpha))
            return g
        # Where only the first pass has a gradient there is no sharpness to weigh; with alpha > 1 it would climb.
        return add(scale(matching(g, g_s), 1.0 - alpha), g_s, alpha)
