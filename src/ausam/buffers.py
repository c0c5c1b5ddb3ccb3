"""Saving a model's buffers and putting them back.

BatchNorm statistics, spectral-norm vectors and quantisation observers move in every training-mode forward, but a step
may move them only once. Copying and restoring is right for all of them, custom classes too.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

Snapshot = list[tuple[nn.Module, str, Tensor, Tensor]]


def save(modules: Iterable[nn.Module]) -> Snapshot:
    """A copy of every buffer of these modules, with the module and name it belongs to."""
    return [
        (module, name, buffer, buffer.detach().clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]


@torch.no_grad()
def restore(snapshot: Snapshot) -> None:
    """Every buffer as it was: the same tensor objects (a forward may have replaced one) with the same values."""
    for module, name, buffer, _ in snapshot:
        if module._buffers.get(name) is not buffer:
            module._buffers[name] = buffer
    if snapshot:
        torch._foreach_copy_([buffer for _, _, buffer, _ in snapshot], [copy for *_, copy in snapshot])
