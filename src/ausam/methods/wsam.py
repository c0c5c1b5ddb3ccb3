"""Weighted sharpness (Yue et al., KDD 2023), in its coupled form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ausam.common.settings import Decay, NonNegative, validate
from ausam.common.tensors import Vector, add, ascent, matching, scale

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class WSAM:
    """SAM with its sharpness as a regulariser of adjustable weight.

        L + gamma / (1 - gamma) * [L(w + e) - L(w)],   e = rho * g / |g|
        the step uses  (1 - alpha) * g + alpha * g_s,   alpha = gamma / (1 - gamma),  g_s = grad L(w + e)

    Yue, Jiang, Ye, Gao, Liu, Zhang: Sharpness-Aware Minimization Revisited: Weighted Sharpness as a Regularization
    Term, KDD 2023.

    >>> import torch
    >>> from ausam import SharpnessAware, WSAM
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), WSAM(rho=0.05, gamma=0.9), model)

    Arguments:
        rho: radius of the perturbation, >= 0.
        gamma: weight of the sharpness, in [0, 1). 0 is the base optimizer, 0.5 is SAM, 0.9 (default) counts the
            sharpness nine times. 0.8 to 0.95 is reported to work best.

    Use it where SAM gives sharpness too little or too much weight. Both passes are averaged over processes, because
    their gradients are mixed. Cost: two forward-backwards.
    """

    rho: NonNegative = 0.05
    gamma: Decay = 0.9
    sharpness: ClassVar[str] = "always"
    passes: ClassVar[tuple[float, float]] = (2.0, 2.0)

    def __post_init__(self) -> None:
        validate(self)

    def gradient(self, step: Step) -> Vector:
        """``(1 - alpha) * g + alpha * g_s``."""
        return self.second(step, step.gradient())

    def second(self, step: Step, g: Vector) -> Vector:
        """The second pass, from ``g = grad L(w)``, which RST and AESAM already have."""
        with step.shifted(ascent(g, step.radius(self.rho))):
            g_s = step.gradient()
        alpha = self.gamma / (1.0 - self.gamma)
        # Where only the first pass has a gradient there is no sharpness to weigh; with alpha > 1 it would climb.
        return add(scale(matching(g, g_s), 1.0 - alpha), g_s, alpha)
