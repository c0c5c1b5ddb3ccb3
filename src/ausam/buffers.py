"""Saving a model's buffers and putting them back.

BatchNorm statistics, spectral-norm vectors and quantisation observers move in every training-mode forward, but a step
may move them only once. Copying and restoring is right for all of them, custom classes too.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

# Module, name, the buffer, and a copy of its values; None twice for a buffer that does not exist yet.
Snapshot = list[tuple[nn.Module, str, Tensor | None, Tensor | None]]


def save(modules: Iterable[nn.Module]) -> Snapshot:
    """A copy of every buffer of these modules."""
    return [
        (module, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in modules
        for name, buffer in module._buffers.items()
    ]


@torch.no_grad()
def restore(snapshot: Snapshot) -> None:
    """Every buffer as it was: the same tensor objects (a forward may have replaced one) with the same values."""
    buffers: list[Tensor] = []
    copies: list[Tensor] = []
    for module, name, buffer, copy in snapshot:
        module._buffers[name] = buffer
        if buffer is not None and copy is not None:
            if buffer.shape != copy.shape:
                buffer.resize_(copy.shape)
            buffers.append(buffer)
            copies.append(copy)
    if buffers:
        torch._foreach_copy_(buffers, copies)
