"""Sharpness-aware minimisation (Foret et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ausam.tensors import Vector, ascent

if TYPE_CHECKING:
    from ausam.run import Run


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

    rho: float = 0.05
    sharpness: ClassVar[str] = "always"

    def __post_init__(self) -> None:
        if not self.rho >= 0:
            raise ValueError(
                f"SAM: rho is {self.rho}, but the radius of a perturbation cannot be negative. Use rho >= 0."
            )

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch."""
        return 2.0, 2.0

    def gradient(self, run: Run) -> Vector:
        """``grad L(w + e)``."""
        return self.second(run, run.gradient(sync=False))

    def second(self, run: Run, g: Vector) -> Vector:
        """The second pass, ``grad L(w + e)``, for who has ``g = grad L(w)`` already (RST, AESAM)."""
        with run.shifted(ascent(g, run.radius(self.rho))):
            return run.gradient()
