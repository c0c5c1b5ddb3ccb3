"""What happens when a loss or a gradient is inf or NaN: the step is skipped, ``opt.step()`` is a no-op.

The optimizer's ``nonfinite`` says whether that is an error. The scores of a sampler ignore such losses by themselves.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ausam.common.ranks import Group, any_of
from ausam.common.tensors import ONE, PLAIN, ZERO, Vector, dense, local
from ausam.optimizer.buffers import BufferGuard
from ausam.optimizer.step import Step

NonFinite = Literal["skip", "raise", "ignore"]


class NonFiniteError(RuntimeError):
    """With ``nonfinite="raise"``: the loss or the gradient of a step is inf or NaN."""


def any_nonfinite(group: Group, tensors: list[Tensor]) -> bool:
    """Whether any number is inf or NaN, in any process of the group.

    All processes need the answer. If the others continued, they would wait for the one with the bad value, or diverge.
    """
    flag = nonfinite_flag(tensors)
    return bool(flag.item()) if group is None else any_of(flag, group)


def nonfinite_flag(tensors: list[Tensor]) -> Tensor:
    """A scalar that is 0 if every number is finite, else 1. It stays on the device.

    Entries may be sparse. For sharded ones, only this process's part counts.
    """
    if not tensors:
        return torch.zeros(())
    on_cpu = tensors[0].is_cpu
    flag = ZERO.clone() if on_cpu else torch.zeros((), dtype=torch.float32, device=tensors[0].device)
    try:
        if not PLAIN.issuperset(map(type, tensors)):
            tensors = list(map(local, tensors))
        # GradScaler's own test: one fused call, faster than a norm. It also multiplies by one.
        torch._amp_foreach_non_finite_check_and_unscale_(tensors, flag, ONE if on_cpu else torch.ones_like(flag))
    except RuntimeError:  # several devices or precisions, a sparse or complex one, memory that cannot be written
        finite = [(t if dense([t]) else t.coalesce().values()).isfinite().all().to(flag.device) for t in tensors]
        flag = torch.stack(finite).all().logical_not()
    return flag


def discard(step: Step, gradient: Vector, guard: BufferGuard, nonfinite: NonFinite) -> None:
    """Undo what a step that is not finite has changed, and raise an error with ``nonfinite="raise"``.

    Otherwise the gradient becomes NaN. A finite gradient of an infinite loss would pass GradScaler's test and be used.
    """
    guard.rollback()
    for restore in reversed(step.writes):
        restore()
    if nonfinite == "raise":
        raise NonFiniteError(
            f"The loss or the gradient of step {step.number} is not finite. Weights and buffers are restored. "
            'Look for bad input or too large a learning rate, or pass nonfinite="skip" to skip such batches.'
        )
    for g in gradient:  # all, because the first may be empty here: no elements, or another process's shard
        if g is not None:
            (g if g.layout == torch.strided else g._values()).fill_(torch.nan)
