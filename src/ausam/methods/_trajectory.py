"""The trajectory loss that SAF and MESA share: stay near what an earlier network said of the same sample."""

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
    """The outputs, if they are one row of logits a sample."""
    if isinstance(outputs, Tensor) and outputs.dim() == 2:
        return outputs
    what = f"of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
    raise TypeError(
        f"{method}: the outputs are {what}, but logits of shape (n, classes) are needed. "
        'Return them from loss_fn: z = model(x); return F.cross_entropy(z, y, reduction="none"), z.'
    )


def check(method: str, lam: float, tau: float, **counts: int) -> None:
    """Raise a ValueError for a weight, temperature or count that means nothing."""
    if not lam >= 0:
        raise ValueError(f"{method}: lam is {lam}, but the weight of a loss cannot be negative. Use lam >= 0.")
    if not tau > 0:
        raise ValueError(f"{method}: tau is {tau}, but logits are divided by it. Use tau > 0, e.g. 5.")
    for name, (value, least) in {k: (v, 1 if k == "gap" else 0) for k, v in counts.items()}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{method}: {name} is {value}, but it counts. Use a whole number >= {least}.")
