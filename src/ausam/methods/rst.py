"""Randomized sharpness-aware training (Zhao et al., 2022)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from ausam.common.settings import NonNegative, OneOf, PositiveCount, Probability
from ausam.common.tensors import CPU, Vector, add, scale
from ausam.methods._base import Inner, Settings, require_inner
from ausam.methods.sam import SAM

if TYPE_CHECKING:
    from ausam.optimizer.step import Step

# How the probability of a SAM step rises during training while its mean stays p: u is the finished fraction of
# training, from 0 to 1, and m = min(p, 1 - p) is the most that p can vary.
SCHEDULES: dict[str, Callable[[float, float, float], float]] = {
    "constant": lambda p, _m, _u: p,
    "piecewise": lambda p, _m, u: float(u >= 1 - p),
    "linear": lambda p, m, u: p + m * (2 * u - 1),
    "trigonometric": lambda p, m, u: p - m * math.cos(math.pi * u),
}


@dataclass(frozen=True)
class RST(Settings):
    """At each step, a coin chooses between an ordinary gradient and a SAM method's.

        X ~ Bernoulli(p(t));   the step uses  grad L(w)  if X = 0,  else  (1 - gamma) * grad L(w) + gamma * g_inner

    With ``u = t / total_steps`` and ``m = min(p, 1 - p)``, p(t) has mean ``p``. Constant is ``p``. Piecewise is 0
    while ``u < 1 - p``, then 1. Linear is ``p + m (2u - 1)``, and trigonometric ``p - m cos(pi u)``.

    Zhao, Zhang, Hu: Randomized Sharpness-Aware Training for Boosting Computational Efficiency in Deep Learning, 2022.

    >>> import torch
    >>> from ausam import RST, SAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), RST(SAM(rho=0.1), p=0.5), model)

    Arguments:
        inner: the method for steps with X = 1. It must evaluate the loss at perturbed weights.
        p: mean probability of such a step, in [0, 1].
        schedule: "constant", "piecewise", "linear" or "trigonometric".
        gamma: >= 0. 1 is RST, other values are G-RST: ``1 / p`` gives SAM's strength on average.
        total_steps: optimizer steps of the whole training. Needed by the rising schedules.

    Use it for a fraction of SAM at that fraction of its extra cost. Cost: 1 + p forward-backwards on average, with SAM.
    """

    inner: Inner = field(default_factory=SAM)
    p: Probability = 0.5
    schedule: Annotated[str, OneOf(tuple(SCHEDULES))] = "constant"
    gamma: NonNegative = 1.0
    total_steps: PositiveCount | None = None
    sharpness: ClassVar[str] = "sometimes"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule != "constant" and self.total_steps is None:
            raise ValueError(
                f"RST: total_steps is None, but the {self.schedule} schedule rises over the whole training. "
                "Pass its number of optimizer steps: total_steps=epochs * len(loader)."
            )
        require_inner("RST", self.inner, needs_second=self.gamma != 1)

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch, on average."""
        forward, backward = self.inner.passes
        return 1 + self.p * (forward - 1), 1 + self.p * (backward - 1)

    @property
    def needs_rows(self) -> bool:
        """Whether the inner method needs the loss of each sample, which a closure cannot give."""
        return bool(getattr(self.inner, "needs_rows", False))

    def gradient(self, step: Step) -> Vector:
        """The plain or the inner gradient, by this step's coin: the same in every process and micro-batch."""
        # A separate stream, because an inner method that draws (ESAM) uses stream 0.
        coin = torch.rand((), generator=step.rng(1), device=CPU).item()
        if coin >= probability(self.schedule, self.p, step.number, self.total_steps):
            return step.gradient()
        if self.gamma == 1:
            gradient: Vector = self.inner.gradient(step)
            return gradient
        g = step.gradient()
        plain = scale(g, 1 - self.gamma)
        return add(plain, self.inner.second(step, g), self.gamma)


def probability(schedule: str, p: float, step: int, total_steps: int | None) -> float:
    """``p(t)``, t counted from 0. Constant from ``total_steps`` on."""
    return SCHEDULES[schedule](p, min(p, 1 - p), min(step / (total_steps or 1), 1.0))
