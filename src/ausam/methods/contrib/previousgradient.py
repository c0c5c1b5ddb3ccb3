"""Single-step SAM, S2-SAM (NeurIPS 2024), in the form of its official code without the adaptive scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ausam.common.settings import NonNegative
from ausam.common.tensors import Vector, add, ascent, scale
from ausam.methods._base import Settings

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class PreviousGradientSAM(Settings):
    """SAM that climbs along the previous step's gradient: one pass per step.

        e = rho * g_prev / |g_prev|;   the step uses  g = grad L(w + e);   then  g_prev := g

    ``g_prev`` was itself computed at perturbed weights. The first step has none and is an ordinary step.

    Ji, Li, Fu, Afghah, Guo, Yuan, Ma: A Single-Step, Sharpness-Aware Minimization is All You Need to Achieve Efficient
    and Accurate Sparse Training, NeurIPS 2024.

    >>> import torch
    >>> from ausam import PreviousGradientSAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), PreviousGradientSAM(rho=0.05), model)

    Arguments:
        rho: radius of the perturbation, >= 0, over all parameters together. A parameter group may have its own
            ``rho``.

    Use it with any base optimizer, when a second pass is too expensive. Each sample's loss is measured only at the
    perturbed weights. The feedback reports it as the loss. All micro-batches of a step share one perturbation, from the
    step before. Memory: two more copies of the weights. Cost: one forward-backward.
    """

    rho: NonNegative = 0.05
    sharpness: ClassVar[str] = "never"
    passes: ClassVar[tuple[float, float]] = (1.0, 1.0)

    def gradient(self, step: Step) -> Vector:
        """``grad L(w + rho g_prev / |g_prev|)``."""
        s = step.state
        again = s.get("at") == step.number  # a further micro-batch of the same optimizer step
        previous: Vector | None = s["previous"] if again else s.get("gradient")
        if previous is None:
            g = step.gradient()
        else:
            # Policies that rank by loss get the measured one, and nothing treats it as sharpness.
            with step.shifted(ascent(previous, step.radius(self.rho)), measures="loss"):
                g = step.gradient()
        mine = scale(
            g, 1.0 / step.scale
        )  # a copy, because .grad will hold g; unscaled, because the loss scale may change
        s.update(at=step.number, previous=previous, gradient=add(s["gradient"], mine) if again else mine)
        return g
