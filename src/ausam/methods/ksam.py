"""K-SAM (Ni et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ausam.common.settings import NonNegative, Part
from ausam.common.tensors import Vector, ascent_, hardest
from ausam.methods._base import Settings

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class KSAM(Settings):
    """SAM on the samples of the batch that have the largest loss.

        K = the fraction keep of the batch with the largest l_i(w),  g = grad L_K(w),  e = rho * g / |g|
        the step uses  grad L_K(w + e)

    Ni, Chiang, Geiping, Goldblum, Wilson, Goldstein: K-SAM: Sharpness-Aware Minimization at the Speed of SGD, 2022.

    >>> import torch
    >>> from ausam import KSAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), KSAM(rho=0.05, keep=0.5), model)

    Arguments:
        rho: radius of the perturbation, >= 0.
        keep: fraction of the batch in both gradients, in (0, 1]: max(1, round(keep * n)) of n samples. 1 is SAM.

    Use it when most samples are already learnt. Not with noisy labels: they have the largest losses. Cost: one
    forward of the whole batch without gradient (none if keep is 1), and two forward-backwards of the kept part.
    """

    rho: NonNegative = 0.05
    keep: Part = 0.5
    sharpness: ClassVar[str] = "always"
    needs_rows: ClassVar[bool] = True

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch."""
        return 2.0 * self.keep + (1.0 if self.keep < 1 else 0.0), 2.0 * self.keep

    def gradient(self, step: Step) -> Vector:
        """``grad L_K(w + e)``."""
        rows = hardest(step.forward(grad=False), self.keep) if self.keep < 1 else None
        g = step.gradient(rows, sync=False)
        with step.shifted(ascent_(g, step.radius(self.rho))):
            return step.gradient(rows)
