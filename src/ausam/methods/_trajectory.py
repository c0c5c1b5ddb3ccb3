"""The trajectory loss of SAF and MESA: stay near an earlier network's outputs for the same sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def trajectory(old: Tensor, new: Tensor, tau: float) -> Tensor:
    """``tau^2 KL(softmax(old / tau) || softmax(new / tau))`` of each row, at least in float32."""
    wide = torch.promote_types(new.dtype, torch.float32)
    target = functional.log_softmax(old.detach().to(new.device, wide) / tau, dim=1)
    present = functional.log_softmax(new.to(wide) / tau, dim=1)
    return tau**2 * functional.kl_div(present, target, reduction="none", log_target=True).sum(1)


def logits(method: str, outputs: Any) -> Tensor:
    """The outputs, if they are one row of logits per sample."""
    if isinstance(outputs, Tensor) and outputs.dim() == 2:
        return outputs
    what = f"of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
    raise TypeError(
        f"{method}: the outputs are {what}, but logits of shape (n, classes) are needed. "
        'Return them from loss_fn: z = model(x); return F.cross_entropy(z, y, reduction="none"), z.'
    )
