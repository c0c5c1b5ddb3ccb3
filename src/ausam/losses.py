"""What a loss function may return."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ausam.tensors import HALF


def per_sample(losses: Any, expected: int | None) -> Tensor:
    """The losses if there is one per sample, in at least float32; else an error that says what to return."""
    if not isinstance(losses, Tensor):
        raise TypeError(
            f"loss_fn returned a {type(losses).__name__}, but per-sample losses are needed: a tensor of shape (n,), "
            "or (losses, outputs)."
        )
    if losses.dim() == 0:
        raise TypeError(
            "loss_fn returned a scalar, but the losses of the single samples are needed. "
            'Build the loss with reduction="none", e.g. F.cross_entropy(model(x), y, reduction="none").'
        )
    if losses.dim() != 1:
        raise ValueError(
            f"loss_fn returned losses of shape {tuple(losses.shape)}, but one loss per sample is needed, shape (n,). "
            "Average what belongs to one sample, e.g. losses.flatten(1).mean(1)."
        )
    if expected is not None and losses.shape[0] != expected:
        raise ValueError(
            f"loss_fn returned {len(losses)} losses for {expected} samples. One loss for each sample is needed."
        )
    if losses.shape[0] == 0:
        raise ValueError("The batch is empty: there is no loss to learn from. Skip empty batches.")
    return losses.float() if losses.dtype in HALF else losses
