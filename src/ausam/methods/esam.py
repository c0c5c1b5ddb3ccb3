"""Efficient SAM (Du et al., ICLR 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ausam.common.settings import NonNegative, Part
from ausam.common.tensors import CPU, Vector, ascent, hardest, scale
from ausam.methods._base import Settings

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class ESAM(Settings):
    """SAM that perturbs some of the tensors and descends on the samples that the perturbation hurts most.

        e = (rho / beta) * g / |g| on tensors drawn with probability beta, the norm over these;  0 on the others
        the step uses the gradient at w + e of the fraction gamma of the batch with the largest  l_i(w + e) - l_i(w)

    Du, Yan, Feng, Zhou, Zhen, Goh, Tan: Efficient Sharpness-Aware Minimization for Improved Training of Neural
    Networks, ICLR 2022. The paper draws single weights. The authors' code, like this one, draws whole tensors.

    >>> import torch
    >>> from ausam import ESAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), ESAM(rho=0.05, beta=0.6, gamma=0.5), model)

    Arguments:
        rho: radius of the perturbation, >= 0.
        beta: probability that a tensor is perturbed, in (0, 1]. At least one always is.
        gamma: fraction of the batch in the second backward, in (0, 1]: max(1, round(gamma * n)) of n samples.
            beta = gamma = 1 is SAM.

    Use it when backward dominates the cost. Cost: 2 + gamma forwards (2 if gamma is 1) and 1 + gamma backwards.
    """

    rho: NonNegative = 0.05
    beta: Part = 0.6
    gamma: Part = 0.5
    sharpness: ClassVar[str] = "always"
    needs_rows: ClassVar[bool] = True

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch."""
        return 2.0 + (self.gamma if self.gamma < 1 else 0.0), 1.0 + self.gamma

    def gradient(self, step: Step) -> Vector:
        """The gradient at ``w + e`` of the samples that it hurts most."""
        return self.second(step, step.gradient(sync=False))

    def second(self, step: Step, g: Vector) -> Vector:
        """The second pass, from ``g = grad L(w)``, which RST and AESAM already have. Overwrites ``g``."""
        draws = torch.rand(len(g), generator=step.rng(), dtype=torch.float32, device=CPU)
        draws[[t is None for t in g]] = 2.0
        chosen = draws < self.beta
        chosen[draws.argmin()] = True
        some = [t if take else None for t, take in zip(g, chosen.tolist(), strict=True)]
        with step.shifted(scale(ascent(some, step.radius(self.rho)), 1.0 / self.beta)):
            if self.gamma == 1:
                return step.gradient()
            step.forward(grad=False)
            return step.gradient(hardest(step.perturbed - step.loss, self.gamma))
