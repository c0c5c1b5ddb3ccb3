"""vSAM (Deng et al., 2024), in the form of its official code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Generator, Tensor

from ausam.common.settings import NonNegative, Part, PositiveCount, Probability
from ausam.common.tensors import CPU, TINY, Vector, add, ascent, matching, norm, scale
from ausam.methods._base import Settings

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class VSAM(Settings):
    """SAM on a quota of steps that follows how much its sharpness term varies. Other steps reuse that term.

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
        super().__post_init__()
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
            of_term, of_gradient = (step.mean_over_ranks(norm(part)) for part in tail)
            s |= observe(s, of_term, of_gradient, self.window, self.blocks)
            return g_s
        s["reused"] += 1
        return add(g, matching(s["psf"], g), self.beta ** s["reused"] * step.scale) if s["reused"] <= 6 else g


# The quota of sampled steps per window follows how fast the term changes. ``memory`` holds the quota, how much of it is
# used, and windows over the last sampled steps; it is not changed in place.


def renew(memory: Mapping[str, Any], alpha1: float, alpha2: float, most: int) -> dict[str, Any]:
    """The quota of the next window, within [1, most], still unused."""
    change = alpha1 * drift(memory.get("ratios")) + alpha2 * drift(memory.get("variances"))
    return {"quota": max(1.0, min(memory["quota"] * (1.0 + change), float(most))), "used": 0}


def due(memory: Mapping[str, Any], position: int, window: int, rng: Generator) -> bool:
    """Whether the step at ``position`` of the window is sampled: drawn, or needed to meet the quota in time."""
    missing: int = int(memory["quota"]) - memory["used"]
    drawn = float(torch.rand((), generator=rng, device=CPU)) < memory["quota"] / window
    return bool(missing > 0 and drawn) or window - position <= missing


def observe(memory: Mapping[str, Any], term: Tensor, gradient: Tensor, window: int, blocks: int) -> dict[str, Tensor]:
    """The windows with one more sampled step: norms of the term, their ratios to the gradient's norm, and variances.

    Once the window of norms is full, the variance is the mean over ``blocks`` equal parts of the sorted norms.
    """
    norms = push(memory.get("norms"), term, window)
    seen = {"norms": norms, "ratios": push(memory.get("ratios"), term / (gradient + TINY), window)}
    if len(norms) == window:
        size = window // blocks
        variance = norms.sort().values[: blocks * size].view(blocks, size).var(dim=1).mean()
        seen["variances"] = push(memory.get("variances"), variance, window)
    return seen


def push(values: Tensor | None, value: Tensor, length: int) -> Tensor:
    """The last ``length`` of the values and one more, on the device of the new one."""
    if values is None:
        return value[None]
    return torch.cat([values.to(value.device), value[None]])[-length:]


def drift(values: Tensor | None) -> float:
    """Mean relative change from one value to the next, within [-1, 1]. 0 with fewer than two values."""
    if values is None:
        return 0.0
    changes = values.diff() / values[:-1]
    good = changes.isfinite()
    # No boolean indexing, because the size of its result would have to be read from the device.
    mean = torch.where(good, changes, 0.0).sum() / good.sum().clamp(min=1)
    return float(mean.clamp(-1.0, 1.0)) if len(changes) else 0.0
