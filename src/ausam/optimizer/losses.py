"""What a loss function may return."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from ausam.common.tensors import HALF


def losses_and_outputs(result: Any) -> tuple[Any, Any]:
    """The two things that a loss function may return; None for outputs that it does not return."""
    if not isinstance(result, tuple):
        return result, None
    if len(result) != 2:
        raise TypeError(
            f"loss_fn returned {len(result)} things, but the losses, or the losses and the outputs, are needed. Put "
            "further outputs into one: return losses, (z, features)."
        )
    return result


def per_sample(losses: Any, expected: int | None) -> Tensor:
    """The losses in at least float32 if there is one per sample; otherwise an error that says what to return."""
    if not isinstance(losses, Tensor):
        raise TypeError(
            f"loss_fn returned a {type(losses).__name__}, but per-sample losses are needed: a tensor of shape (n,), "
            "or (losses, outputs)."
        )
    shape = losses.shape
    if not shape:
        raise TypeError(
            "loss_fn returned a scalar, but per-sample losses are needed. "
            'Build the loss with reduction="none", e.g. F.cross_entropy(model(x), y, reduction="none").'
        )
    if len(shape) != 1:
        raise ValueError(
            f"loss_fn returned losses of shape {tuple(shape)}, but one loss per sample is needed, shape (n,). "
            "Average what belongs to one sample, e.g. losses.flatten(1).mean(1)."
        )
    if expected is not None and shape[0] != expected:
        raise ValueError(f"loss_fn returned {shape[0]} losses for {expected} samples. Return one loss per sample.")
    if shape[0] == 0:
        raise ValueError("The batch is empty, so it has no loss. Skip empty batches.")
    return losses.float() if losses.dtype in HALF else losses


def samples_in(batch: Any) -> int:
    """How many samples a batch has: the length that all of its tensors share."""
    lengths = {len(t) for t in tree_leaves(batch) if isinstance(t, Tensor) and t.dim() > 0}
    if len(lengths) != 1:
        found = f"tensors of lengths {', '.join(map(str, sorted(lengths)))}" if lengths else "no tensors"
        raise ValueError(
            f"This method splits the batch, but the batch holds {found}, so the number of samples is not known. "
            "Pass index= to opt.backward: one whole number per sample, e.g. torch.arange(n)."
        )
    return lengths.pop()
