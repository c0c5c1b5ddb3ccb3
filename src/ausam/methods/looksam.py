"""LookSAM (Liu et al., CVPR 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ausam.common.settings import NonNegative, Positive, PositiveCount
from ausam.common.tensors import TINY, Vector, add, ascent, matching, norm, orthogonal, scale
from ausam.methods._base import Settings

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class LookSAM(Settings):
    """SAM every k steps. In between, ordinary steps corrected by the direction of the last SAM step.

        every k-th step:  g_s = grad L(w + rho g / |g|),  g_v := g_s - (<g_s, g> / |g|^2) g,  the step uses g_s
        the others:       the step uses  g + alpha * (|g| / |g_v|) * g_v

    Liu, Mai, Chen, Hsieh, You: Towards Efficient and Scalable Sharpness-Aware Minimization, CVPR 2022. Norms and inner
    products are over all parameters together, as the paper writes them. Some ports take them per tensor.

    >>> import torch
    >>> from ausam import LookSAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), LookSAM(rho=0.05, k=5, alpha=0.7), model)

    Arguments:
        rho: radius of the perturbation, > 0, because g_v does not exist without one.
        k: a SAM step every k steps, >= 1. 1 is SAM.
        alpha: length of the reused part, relative to the gradient, >= 0. 0 is the base optimizer between SAM steps.

    Use it when SAM helps but is too expensive. A resume without g_v starts with a SAM step. Both passes are
    averaged over processes, because their gradients are mixed. Memory: two more copies of the weights after a SAM
    step, then one. Cost: 1 + 1/k forward-backwards.
    """

    rho: Positive = 0.05
    k: PositiveCount = 5
    alpha: NonNegative = 0.7
    sharpness: ClassVar[str] = "sometimes"

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch."""
        return 1.0 + 1.0 / self.k, 1.0 + 1.0 / self.k

    def gradient(self, step: Step) -> Vector:
        """``grad L(w + e)`` every k steps, else the gradient with the reused part."""
        g = step.gradient()
        remembers = step.state.keys() & {"vertical", "at"}
        due = step.number % self.k == 0 or not remembers or step.state.get("at") == step.number
        return self.second(step, g) if due else self.reuse(step, g)

    def second(self, step: Step, g: Vector) -> Vector:
        """A SAM step that keeps the parts of g_v, from ``g = grad L(w)``, which RST and AESAM already have."""
        with step.shifted(ascent(g, step.radius(self.rho))):
            g_s = step.gradient()
        # The micro-batches of one optimizer step add up, because g_v belongs to the whole step.
        again = step.state.get("at") == step.number
        plain, perturbed = (step.state["plain"], step.state["perturbed"]) if again else (None, None)
        step.state.pop("vertical", None)
        step.state.update(
            at=step.number,
            plain=g if plain is None else add(plain, g),
            perturbed=scale(g_s, 1.0) if perturbed is None else add(perturbed, g_s),  # a copy: .grad will hold g_s
        )
        return g_s

    def reuse(self, step: Step, g: Vector) -> Vector:
        """``g`` corrected by the last g_v, if there is one."""
        if "at" in step.state:
            step.state["vertical"] = orthogonal(step.state.pop("perturbed"), step.state.pop("plain"))
            del step.state["at"]
        if "vertical" not in step.state:
            return g
        g_v = matching(step.state["vertical"], g)
        return add(g, g_v, self.alpha * norm(g) / (norm(g_v) + TINY))
