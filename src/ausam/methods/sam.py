"""Sharpness-aware minimisation (Foret et al., ICLR 2021), over the whole batch or parts of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from ausam.common.settings import NonNegative, OneOf, Part, PositiveCount
from ausam.common.tensors import CPU, Vector, add, ascent_, rounded
from ausam.methods._base import Settings

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class SAM(Settings):
    """The gradient at the worst point near the weights.

        e = rho * g / |g|,  g = grad L(w);   the step uses  grad L(w + e)
        m:       the batch is split into groups of at most m. Each has its own e, and the gradients are averaged
        ascent:  g is from this fraction of the batch, drawn at random. The step uses the whole batch at w + e

    Foret, Kleiner, Mobahi, Neyshabur: Sharpness-Aware Minimization for Efficiently Improving Generalization, ICLR 2021.

    >>> import torch
    >>> from ausam import SAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), SAM(rho=0.05), model)
    >>> SAM(rho=0.05, m=16).passes, SAM(rho=0.05, ascent=0.25).passes
    ((2.0, 2.0), (1.25, 1.25))

    Arguments:
        rho: radius of the perturbation, >= 0, over all parameters together. 0.05 to 0.2 for image classifiers. Larger
            with noisy labels. A parameter group may have its own ``rho``.
        m: samples that share a perturbation, >= 1 (m-sharpness, 1 is 1-SAM). If None (default), the whole batch.
        ascent: fraction of the batch that determines the perturbation, in (0, 1]. If None (default), all of it. Not
            together with ``m``.
        weighted: the pass that uses the samples' weights (InfoBatch's, ``weight=`` of ``opt.backward``): "both"
            (default), "first" or "second". The paper does not say which its SAM+Info has.

    Use it when the training loss gets low but the model generalises poorly. Not worth its cost while the model
    underfits. Cost: two forward-backwards. 1 + ascent with ``ascent``. ``m`` computes no more samples, but in small
    groups one after the other, which takes longer.
    """

    rho: NonNegative = 0.05
    m: PositiveCount | None = None
    ascent: Part | None = None
    weighted: Annotated[str, OneOf(("both", "first", "second"))] = "both"
    sharpness: ClassVar[str] = "always"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.m is not None and self.ascent is not None:
            raise ValueError(
                f"SAM: m is {self.m} and ascent is {self.ascent}, but a perturbation per group and one from a part of "
                "the batch cannot be combined. Use one of the two."
            )

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch."""
        cost = 2.0 if self.ascent is None else 1.0 + self.ascent
        return cost, cost

    @property
    def starts_from_gradient(self) -> bool:
        """Whether RST and AESAM may give it ``grad L(w)``: its first pass uses the whole batch, with its weights."""
        return not self.needs_rows and self.weighted != "second"

    @property
    def needs_rows(self) -> bool:
        """Whether it needs the loss of each sample, which a closure cannot give: it evaluates parts of the batch."""
        return self.m is not None or self.ascent is not None

    def gradient(self, step: Step) -> Vector:
        """``grad L(w + e)``."""
        if self.m is not None:
            return self._by_groups(step, self.m)
        rows = None if self.ascent is None else self._drawn(step, self.ascent)
        return self.second(step, step.gradient(rows, sync=False, weighted=self.weighted != "second"))

    def second(self, step: Step, g: Vector) -> Vector:
        """``grad L(w + e)`` from ``g = grad L(w)``, which RST and AESAM already have. Overwrites ``g``."""
        with step.shifted(ascent_(g, step.radius(self.rho))):
            return step.gradient(weighted=self.weighted != "first")

    def _drawn(self, step: Step, part: float) -> torch.Tensor | None:
        n = step.count
        k = rounded(part, n)
        return None if k == n else torch.randperm(n, generator=step.rng(), device=CPU)[:k]

    def _by_groups(self, step: Step, m: int) -> Vector:
        n = step.count
        # Each group is a synchronised pass, so all processes need the same number.
        groups = step.min_over_ranks(-(-n // m))
        first, second = self.weighted != "second", self.weighted != "first"
        if groups == 1:
            return self.second(step, step.gradient(sync=False, weighted=first))
        total: Vector = [None] * len(step.params)
        for rows in torch.arange(n, device=CPU).tensor_split(groups):
            g = step.gradient(rows, sync=False, weighted=first)
            with step.shifted(ascent_(g, step.radius(self.rho))):
                # Weighted before the processes average, because their groups may differ in size.
                g = step.backward(step.forward(rows) * (len(rows) / n), rows, weighted=second)
            total = add(total, g)
        return total
