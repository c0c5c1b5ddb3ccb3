"""What happens when a loss or a gradient is inf or NaN: the step is skipped, ``opt.step()`` is a no-op.

The optimizer's ``nonfinite`` says whether that is an error. The scores of a sampler ignore such losses by themselves.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ausam.common.ranks import Group, any_of
from ausam.common.tensors import ONE, PLAIN, ZERO, dense, local

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
            tensors = [*map(local, tensors)]
        # GradScaler's own test: one fused call, faster than a norm. It also multiplies by one.
        torch._amp_foreach_non_finite_check_and_unscale_(tensors, flag, ONE if on_cpu else torch.ones_like(flag))
    except RuntimeError:  # several devices or precisions, a sparse or complex one, memory that cannot be written
        finite = [(t if dense([t]) else t.coalesce().values()).isfinite().all().to(flag.device) for t in tensors]
        flag = torch.stack(finite).all().logical_not()
    return flag


def fill_with_nan(gradient: list[Tensor]) -> None:
    """Mark a skipped step for GradScaler: a finite gradient of an infinite loss would pass its test and be used."""
    for g in gradient:
        (g if g.layout == torch.strided else g._values()).fill_(torch.nan)
