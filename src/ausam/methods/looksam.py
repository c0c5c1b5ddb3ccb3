"""LookSAM (Liu et al., CVPR 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ausam.tensors import TINY, Vector, add, ascent, matching, norm, orthogonal

if TYPE_CHECKING:
    from ausam.run import Run


@dataclass(frozen=True)
class LookSAM:
    """SAM every k steps; in between, ordinary steps bent by what the last SAM step found.

        every k-th step:  g_s = grad L(w + rho g / |g|),  g_v := g_s - (<g_s, g> / |g|^2) g,  the step uses g_s
        the others:       the step uses  g + alpha * (|g| / |g_v|) * g_v

    Liu, Mai, Chen, Hsieh, You: Towards Efficient and Scalable Sharpness-Aware Minimization, CVPR 2022. Norms and inner
    products are over all parameters together, as the paper writes them; some ports take them per tensor.

    >>> import torch
    >>> from ausam import LookSAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), LookSAM(rho=0.05, k=5, alpha=0.7), model)

    Arguments:
        rho: radius of the perturbation, > 0: the direction g_v does not exist without one.
        k: a SAM step every k steps, >= 1; 1 is SAM.
        alpha: length of the reused part, relative to the gradient, >= 0; 0 is the base optimizer between SAM steps.

    Use it when SAM helps and its price does not fit. A resume without g_v begins with a SAM step. Both passes are
    averaged over processes, since their gradients are mixed. Memory: one more copy of the weights. Cost: 1 + 1/k
    forward-backwards.
    """

    rho: float = 0.05
    k: int = 5
    alpha: float = 0.7
    sharpness: ClassVar[str] = "sometimes"

    def __post_init__(self) -> None:
        if not self.rho > 0:
            raise ValueError(
                f"LookSAM: rho is {self.rho}, but what is reused is the direction in which a perturbation turns the "
                "gradient, and without one there is none. Use rho > 0, or Plain()."
            )
        if not (isinstance(self.k, int) and self.k >= 1):
            raise ValueError(f"LookSAM: k is {self.k}, but it counts steps. Use a whole number k >= 1.")
        if not self.alpha >= 0:
            raise ValueError(f"LookSAM: alpha is {self.alpha}, but it cannot be negative. Use alpha >= 0.")

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch."""
        return 1.0 + 1.0 / self.k, 1.0 + 1.0 / self.k

    def gradient(self, run: Run) -> Vector:
        """``grad L(w + e)`` every k steps, else the gradient with the reused part."""
        g = run.gradient()
        return self.reuse(run, g) if run.step % self.k and "vertical" in run.state else self.second(run, g)

    def second(self, run: Run, g: Vector) -> Vector:
        """A SAM step that remembers g_v, for who has ``g = grad L(w)`` already (RST, AESAM)."""
        with run.shifted(ascent(g, run.radius(self.rho))):
            g_s = run.gradient()
        run.state["vertical"] = orthogonal(g_s, g)
        return g_s

    def reuse(self, run: Run, g: Vector) -> Vector:
        """``g`` bent by the last g_v, if there is one."""
        if "vertical" not in run.state:
            return g
        g_v = matching(run.state["vertical"], g)
        return add(g, g_v, self.alpha * norm(g) / (norm(g_v) + TINY))
