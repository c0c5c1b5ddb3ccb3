"""Feedback, the record that links the two axes: what an optimizer step learned about each sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Feedback:
    """Per-sample losses of one step, as :meth:`SharpnessAware.backward` returns and a sampler's ``update`` takes them.

    Arguments:
        index: dataset index of each sample, or None if it was not given.
        loss: loss of each sample at the weights ``w``; NaN where it was not evaluated.
        perturbed: loss of each sample at ``w + e``; NaN where it was not evaluated.
        outputs: what ``loss_fn`` returned alongside the losses at ``w``, detached; None if it returned only losses.
    """

    index: Tensor | None
    loss: Tensor
    perturbed: Tensor
    outputs: Any = None

    def __post_init__(self) -> None:
        for name in ("index", "loss", "perturbed"):
            value = getattr(self, name)
            if not isinstance(value, Tensor) and (name, value) != ("index", None):
                raise TypeError(
                    f"Feedback: {name} is a {type(value).__name__}, but a tensor with one number per sample is "
                    "needed: torch.tensor(...)."
                )
        if self.loss.shape != self.perturbed.shape:
            raise ValueError(
                f"Feedback: loss has shape {tuple(self.loss.shape)} and perturbed {tuple(self.perturbed.shape)}, but "
                "both have one number per sample. Use NaN for a sample whose loss was not evaluated."
            )

    @property
    def sharpness(self) -> Tensor:
        """The paper's DLP, ``|L(w + e) - L(w)|``: a free estimate of ``rho`` times the sample's gradient norm."""
        return (self.perturbed - self.loss).abs()
