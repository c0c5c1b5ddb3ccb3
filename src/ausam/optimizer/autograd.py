"""Back-propagation of per-sample losses."""

from __future__ import annotations

import torch
from torch import Tensor

_run_engine = getattr(torch.autograd.graph, "_engine_run_backward", None)  # private: a later torch may lack it


def backward(losses: Tensor, share: Tensor) -> None:
    """Add the gradient of ``(losses * share).sum()`` to ``.grad``, without graph nodes for the product and the sum.

    The same as ``torch.autograd.backward(losses, share)``, which first checks its arguments in Python. ``share`` is
    made like ``losses``, so there is nothing to check; for a small network it would take a third of SAM's own cost.
    """
    if _run_engine is None or type(losses) is not Tensor or torch._C._are_functorch_transforms_active():
        torch.autograd.backward(losses, share)
    else:
        _run_engine((losses,), (share,), False, False, (), allow_unreachable=True, accumulate_grad=True)
