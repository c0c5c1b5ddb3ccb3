"""Feedback, the record that links the two axes: what an optimizer step learned about each sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Feedback:
    """Per-sample losses of one step, as :meth:`SharpnessAware.backward` returns and a sampler's ``update`` takes them.

    Arguments:
        index: dataset index of each sample, or None if it was not given.
        loss: loss of each sample at the weights ``w``. NaN where it was not evaluated.
        perturbed: loss of each sample at ``w + e``. NaN where it was not evaluated. Left out: NaN for all.
        outputs: what ``loss_fn`` returned alongside the losses at ``w``, detached. None if it returned only losses.
    """

    index: Tensor | None
    loss: Tensor
    perturbed: Tensor = field(default=None)  # type: ignore[assignment]
    outputs: Any = None

    def __post_init__(self) -> None:
        if self.perturbed is None and isinstance(self.loss, Tensor):
            object.__setattr__(self, "perturbed", torch.full_like(self.loss, torch.nan))
        for name in ("loss", "perturbed") if self.index is None else ("loss", "perturbed", "index"):
            if not isinstance(getattr(self, name), Tensor):
                raise TypeError(
                    f"Feedback: {name} is a {type(getattr(self, name)).__name__}, but a tensor with one number per "
                    "sample is needed: torch.tensor(...)."
                )
        if self.index is not None and self.index.is_floating_point():
            raise TypeError(
                f"Feedback: index has type {self.index.dtype}, which cannot hold every whole number. Use int64."
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

    @property
    def mean_loss(self) -> Tensor:
        """The mean loss of the samples that were evaluated at ``w``: SAM(ascent=0.5) leaves some of them out."""
        return self.loss.nanmean()

    def accuracy(self, labels: Tensor) -> Tensor:
        """The fraction of right predictions among the samples that were evaluated at ``w``.

        Needs ``outputs`` to be one row of logits per sample: let ``loss_fn`` return ``(losses, logits)``.
        """
        z = self.outputs
        if not isinstance(z, Tensor) or z.dim() != 2:
            raise TypeError(
                "Feedback: accuracy needs logits of shape (n, classes) as outputs. Return them from loss_fn: "
                'z = model(x); return F.cross_entropy(z, y, reduction="none"), z.'
            )
        right = (z.argmax(1) == labels.to(z.device)).float()
        return right.masked_fill(z.isnan().all(1), torch.nan).nanmean()
