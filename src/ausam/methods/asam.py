"""Adaptive SAM (Kwon et al., ICML 2021), in the form of its official code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ausam.tensors import Vector, ascent, multiply

if TYPE_CHECKING:
    from ausam.run import Run


@dataclass(frozen=True)
class ASAM:
    """SAM in a neighbourhood that scales with each weight, so that rescaling a layer does not change the sharpness.

        e = rho * T^2 g / |T g|,  T = |w| + eta for weights, 1 for biases;   the step uses  grad L(w + e)

    Kwon, Kim, Park, Choi: ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural
    Networks, ICML 2021. Three forms are in circulation; this is that of the authors' code: a parameter is a weight if
    its name contains "weight" (so BatchNorm's scale is one), and ``eta`` keeps small weights movable.

    >>> import torch
    >>> from ausam import ASAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), ASAM(rho=0.5), model)

    Arguments:
        rho: radius, >= 0; about ten times SAM's (the authors: 0.5 on CIFAR-10, 1.0 on CIFAR-100).
        eta: added to ``|w|``, >= 0 (the class default of the authors' code is 0.01; their CIFAR script passes 0).

    Use it in place of SAM when layers differ much in scale. Cost: two forward-backwards.
    """

    rho: float = 0.5
    eta: float = 0.01
    sharpness: ClassVar[str] = "always"

    def __post_init__(self) -> None:
        for name, value in (("rho", self.rho), ("eta", self.eta)):
            if not value >= 0:
                raise ValueError(f"ASAM: {name} is {value}, but it cannot be negative. Use {name} >= 0.")

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch."""
        return 2.0, 2.0

    def gradient(self, run: Run) -> Vector:
        """``grad L(w + e)``."""
        return self.second(run, run.gradient(sync=False))

    def second(self, run: Run, g: Vector) -> Vector:
        """The second pass, ``grad L(w + e)``, for who has ``g = grad L(w)`` already (RST, AESAM)."""
        t: Vector = [
            p.detach().abs() + self.eta if "weight" in name else torch.ones_like(p)
            for name, p in zip(run.names, run.params, strict=True)
        ]
        with run.shifted(multiply(t, ascent(multiply(t, g), run.radius(self.rho)))):
            return run.gradient()
