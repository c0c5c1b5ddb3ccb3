"""vSAM (Deng et al., 2024), in the form of its official code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ausam.common.settings import NonNegative, Part, PositiveCount, Probability, validate
from ausam.common.tensors import Vector, add, ascent, matching, norm, scale
from ausam.methods._quota import due, observe, renew

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class VSAM:
    """SAM on a quota of steps that follows how much its sharpness term varies; other steps reuse that term.

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

    Arguments:
        rho: radius of the perturbation, >= 0.
        window: steps between updates of the quota, >= 2 * blocks.
        blocks: equal parts of the window in which the variance is computed, >= 1.
        max_part: largest quota as a fraction of the window, in [1 / window, 1].
        alpha1: how strongly the quota follows the ratio r, >= 0.
        alpha2: how strongly the quota follows the variance v, >= 0.
        beta: decay of the reused term from step to step, in [0, 1].
        warmup: SAM steps at the start, >= 1. The default is three epochs of CIFAR at batch size 128: set it to three
            epochs of your data.
        last: the norms use this many last tensors, >= 1.

    Use it when SAM helps but is too expensive. It reads a few numbers from the device once per window.
    """

    rho: NonNegative = 0.05
    window: PositiveCount = 50
    blocks: PositiveCount = 5
    max_part: Part = 0.8
    alpha1: NonNegative = 0.13
    alpha2: NonNegative = 0.13
    beta: Probability = 0.7
    warmup: PositiveCount = 1173
    last: PositiveCount = 10
    sharpness: ClassVar[str] = "sometimes"

    def __post_init__(self) -> None:
        validate(self)
        if self.window < 2 * self.blocks:
            raise ValueError(
                f"VSAM: window is {self.window} and blocks is {self.blocks}, but the variance inside a block needs two "
                "values. Use window >= 2 * blocks."
            )
        if self.max_part * self.window < 1:
            raise ValueError(
                f"VSAM: max_part is {self.max_part} of a window of {self.window} steps, which is less than one step. "
                "Use max_part >= 1 / window."
            )

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch: an upper bound after the warm-up."""
        return 1.0 + self.max_part, 1.0 + self.max_part

    def gradient(self, step: Step) -> Vector:
        """``grad L(w + e)`` on sampled steps, else the gradient with the reused term."""
        s = step.state
        s |= {"quota": 1.0, "used": 0, "reused": 0, **s, "count": s.get("count", 0) + 1}
        t = s["count"] - self.warmup  # the first step after the warm-up is 1, as in the authors' code
        if t > 0 and t % self.window == 0:
            s |= renew(s, self.alpha1, self.alpha2, int(self.max_part * self.window))
        g = step.gradient()
        if t <= 0 or due(s, t % self.window, self.window, step.rng()):
            with step.shifted(ascent(g, step.radius(self.rho))):
                g_s = step.gradient()
            psf = s["psf"] = scale(matching(add(g_s, g, -1.0), g_s), 1.0 / step.scale)  # the loss scale may change
            tail = (psf[-self.last :], scale(g[-self.last :], 1.0 / step.scale))
            s |= {"reused": 0, "used": s["used"] + 1}
            s |= observe(s, step.agreed(norm(tail[0])), step.agreed(norm(tail[1])), self.window, self.blocks)
            return g_s
        s["reused"] += 1
        return add(g, matching(s["psf"], g), self.beta ** s["reused"] * step.scale) if s["reused"] <= 6 else g
