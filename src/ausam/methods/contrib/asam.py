"""Adaptive SAM (Kwon et al., ICML 2021), in the form of its official code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from ausam.common.settings import NonNegative, OneOf
from ausam.common.tensors import Vector, as_complex, as_real, ascent_, multiply, present
from ausam.methods._base import Settings

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class ASAM(Settings):
    """SAM in a neighbourhood that scales with each weight, so rescaling a layer does not change the sharpness.

        e = rho * T^2 g / |T g|,  T = |w| + eta for weights, 1 for biases;   the step uses  grad L(w + e)
        scaled="all":  T = |w| + eta for every parameter

    Kwon, Kim, Park, Choi: ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural
    Networks, ICML 2021. Several forms are in circulation. The default follows the authors' code: a parameter is a
    weight if its name contains "weight" (BatchNorm's scale included), and ``eta`` keeps small weights movable.
    ``ASAM(rho, eta=0, scaled="all")`` is davda54/sam's and pytorch_optimizer's ``adaptive=True``.

    >>> import torch
    >>> from ausam import ASAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), ASAM(rho=0.5), model)

    Arguments:
        rho: radius, >= 0. About ten times SAM's (the authors: 0.5 on CIFAR-10, 1.0 on CIFAR-100).
        eta: added to ``|w|``, >= 0 (the class default of the authors' code is 0.01, their CIFAR script passes 0).
        scaled: "weights" (default) or "all": the parameters that T scales. T is 1 for the others.

    Use it instead of SAM when layers differ widely in scale. Cost: two forward-backwards.
    """

    rho: NonNegative = 0.5
    eta: NonNegative = 0.01
    scaled: Annotated[str, OneOf(("weights", "all"))] = "weights"
    sharpness: ClassVar[str] = "always"
    passes: ClassVar[tuple[float, float]] = (2.0, 2.0)

    def gradient(self, step: Step) -> Vector:
        """``grad L(w + e)``."""
        return self.second(step, step.gradient(sync=False))

    def second(self, step: Step, g: Vector) -> Vector:
        """``grad L(w + e)`` from ``g = grad L(w)``, which RST and AESAM already have. Overwrites ``g``."""
        # Complex weights count as pairs of reals, each with its own scale.
        t: Vector = [
            w.abs() + self.eta if self.scaled == "all" or "weight" in name else torch.ones_like(w)
            for name, w in zip(step.names, present(as_real([p.detach() for p in step.params])), strict=True)
        ]
        e = multiply(t, ascent_(multiply(t, as_real(g)), step.radius(self.rho)))
        with step.shifted(as_complex(e, like=g)):
            return step.gradient()
