"""vSAM (Deng et al., 2024), in the form of its official code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ausam.methods._quota import due, observe, renew
from ausam.tensors import Vector, add, ascent, matching, norm, scale

if TYPE_CHECKING:
    from ausam.run import Run


@dataclass(frozen=True)
class VSAM:
    """SAM on a quota of steps that follows how much its sharpness term varies; in between that term is reused.

        sampled step:  g_s = grad L(w + rho g / |g|),  PSF := g_s - g,  the step uses g_s
        others:        the step uses  g + beta^j PSF  on the j-th step after it, j <= 6, then g alone
        every window:  quota := quota * (1 + alpha1 * r + alpha2 * v), within [1, max_part * window]; r and v are the
                       mean relative changes of |PSF| / |g| and of the variance of |PSF| between sampled steps

    Deng, Pang, Zhang, Wang: Effective Gradient Sample Size via Variation Estimation for Accelerating Sharpness aware
    Minimization, 2024. Cost: 2 forward-backwards in the warm-up, then 1 + quota / window.

    >>> import torch
    >>> from ausam import VSAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), VSAM(rho=0.05, warmup=1000), model)

    Arguments: rho >= 0; window >= 2 blocks >= 2, steps and the parts of them in which the variance is taken; max_part
        in [1 / window, 1]; alpha1, alpha2 >= 0; beta in [0, 1]; warmup >= 1, steps of SAM (1173 are three epochs of
        CIFAR at batch size 128: set it to three of yours); last >= 1, the last tensors, that the norms are taken of.
    """

    rho: float = 0.05
    window: int = 50
    blocks: int = 5
    max_part: float = 0.8
    alpha1: float = 0.13
    alpha2: float = 0.13
    beta: float = 0.7
    warmup: int = 1173
    last: int = 10
    sharpness: ClassVar[str] = "sometimes"

    def __post_init__(self) -> None:
        counts = self.window >= 2 * self.blocks >= 2 and self.warmup >= 1 and self.last >= 1
        parts = 1 <= self.max_part * self.window <= self.window and 0 <= self.beta <= 1
        if not (counts and parts and self.rho >= 0 and self.alpha1 >= 0 and self.alpha2 >= 0):
            raise ValueError(
                f"{self} is out of range. Use rho, alpha1, alpha2 >= 0, window >= 2 * blocks >= 2 (a variance needs "
                "two values), 1/window <= max_part <= 1, 0 <= beta <= 1, last >= 1, warmup >= 1 (a term to reuse)."
            )

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch: at most these after the warm-up."""
        return 1.0 + self.max_part, 1.0 + self.max_part

    def gradient(self, run: Run) -> Vector:
        """``grad L(w + e)`` on sampled steps, else the gradient with the reused term."""
        s = run.state
        s |= {"quota": 1.0, "used": 0, "reused": 0, **s, "count": s.get("count", 0) + 1}
        t = s["count"] - self.warmup  # the first step after the warm-up is 1, as in the authors' code
        if t > 0 and t % self.window == 0:
            s |= renew(s, self.alpha1, self.alpha2, int(self.max_part * self.window))
        g = run.gradient()
        if t <= 0 or due(s, t % self.window, self.window, run.rng):
            with run.shifted(ascent(g, run.radius(self.rho))):
                g_s = run.gradient()
            psf = s["psf"] = scale(matching(add(g_s, g, -1.0), g_s), 1.0 / run.scale)  # the loss scale may change
            tail = (psf[-self.last :], scale(g[-self.last :], 1.0 / run.scale))
            s |= {"reused": 0, "used": s["used"] + 1}
            s |= observe(s, run.agreed(norm(tail[0])), run.agreed(norm(tail[1])), self.window, self.blocks)
            return g_s
        s["reused"] += 1
        return add(g, matching(s["psf"], g), self.beta ** s["reused"] * run.scale) if s["reused"] <= 6 else g
