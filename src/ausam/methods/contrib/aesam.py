"""Adaptive policy SAM (Jiang et al., ICLR 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ausam.common.settings import Decay, Finite, PositiveCount
from ausam.common.tensors import Vector, norm, scale
from ausam.methods._base import Inner, Settings, require_inner
from ausam.methods.sam import SAM

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class AESAM(Settings):
    """SAM only on steps with an unusually large gradient, more often towards the end.

        s = |g|^2,  g = grad L(w);   mu := delta * mu + (1 - delta) * s,   v := delta * v + (1 - delta) * (s - mu)^2
        c = (t / T) * lambda1 + (1 - t / T) * lambda2;   SAM's gradient if  s >= mu + c * sqrt(v),  else g

    Both averages are bias-corrected (each divided by its sum of weights), so the first step is a SAM step. With
    ``inner=LookSAM(...)`` (AE-LookSAM) the other steps use LookSAM's reuse of the last SAM step, and its k is not used.
    Jiang, Yang, Zhang, Kwok: An Adaptive Policy to Employ Sharpness-Aware Minimization, ICLR 2023.

    >>> import torch
    >>> from ausam import AESAM, SAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), AESAM(SAM(rho=0.1), total_steps=1000), model)

    Arguments:
        inner: the method for steps above the threshold: SAM, ASAM, LookSAM.
        delta: decay of the averages, in [0, 1).
        lambda1: the threshold's distance from the mean in standard deviations at the end of training.
        lambda2: the same at the start.
        total_steps: T, optimizer steps of the whole training, >= 1: ``epochs * len(loader)``.

    Use it when SAM helps but is too expensive. All processes make the same decision, because they average the pass at
    w. It reads one number per step from the device. Cost: 1 + the fraction of SAM steps, about 1.5 forward-backwards.
    ``opt.samples_forward`` counts.
    """

    inner: Inner = field(default_factory=SAM)
    delta: Decay = 0.9
    lambda1: Finite = -1.0
    lambda2: Finite = 1.0
    total_steps: PositiveCount = field(kw_only=True)
    sharpness: ClassVar[str] = "sometimes"
    passes: ClassVar[tuple[float, float]] = (1.5, 1.5)  # if half of the steps are SAM's

    def __post_init__(self) -> None:
        super().__post_init__()
        require_inner("AESAM", self.inner, needs_second=True)

    @property
    def needs_rows(self) -> bool:
        """Whether the inner method needs the loss of each sample, which a closure cannot give."""
        return bool(getattr(self.inner, "needs_rows", False))

    def gradient(self, step: Step) -> Vector:
        """The inner method's gradient above the threshold, otherwise the plain one. Both from one pass at ``w``."""
        g = step.gradient()
        # Averaged, because inside a user's no_sync (accumulation) g is not.
        s = step.mean_over_ranks((norm(g) / step.scale) ** 2).item()
        count, mu, v = (step.state.get(key, 0) for key in ("count", "mean", "variance"))
        share = (1 - self.delta) / (1 - self.delta ** (count + 1))
        if not math.isfinite(s):
            return scale(g, math.nan)  # a batch beyond all bounds must not spoil the averages: the step is skipped
        mu += share * (s - mu)
        v += share * ((s - mu) ** 2 - v)
        step.state.update(count=count + 1, mean=mu, variance=v)
        u = min(step.number / self.total_steps, 1.0)
        over = s >= mu + (u * self.lambda1 + (1 - u) * self.lambda2) * math.sqrt(v)
        if not over and not hasattr(self.inner, "reuse"):
            return g
        gradient: Vector = self.inner.second(step, g) if over else self.inner.reuse(step, g)
        return gradient
