"""Sharpness-aware minimisation (Foret et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ausam.settings import NonNegative, check
from ausam.tensors import Vector

if TYPE_CHECKING:
    from ausam.step import Step


@dataclass(frozen=True)
class SAM:
    """The gradient at the worst point near the weights.

        e = rho * g / |g|,  g = grad L(w);   the step uses  grad L(w + e)

    Foret, Kleiner, Mobahi, Neyshabur: Sharpness-Aware Minimization for Efficiently Improving Generalization, ICLR 2021.

    >>> import torch
    >>> from ausam import SAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), SAM(rho=0.05), model)

    Arguments:
        rho: radius of the perturbation, >= 0, over all parameters together. 0.05 to 0.2 for image classifiers; larger
            where labels are noisy. A parameter group may carry its own ``rho``.

    Use it where the training loss can be driven low and generalisation is what is missing. Not worth its price while
    the model still underfits. Cost: two forward-backwards.
    """

    rho: NonNegative = 0.05
    sharpness: ClassVar[str] = "always"
    passes: ClassVar[tuple[float, float]] = (2.0, 2.0)

    def __post_init__(self) -> None:
        check(self)

    def gradient(self, step: Step) -> Vector:
        """``grad L(w + e)``."""
        return self.second(step, step.gradient(sync=False))

    def second(self, step: Step, g: Vector) -> Vector:
        """``grad L(w + e)`` from ``g = grad L(w)``, which is used up. RST and AESAM have it already."""
        with step.ascended(g, self.rho):
            return step.gradient()
