"""The memory layout of images and convolutions. On CPUs and GPUs, convolutions are fastest with channels last."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)

FORMATS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}


def to_memory_format(x: Tensor, name: str) -> Tensor:
    """The batch in this format. A batch of anything but images is unchanged."""
    return x.contiguous(memory_format=FORMATS[name]) if x.dim() == 4 else x


def with_format(model: M, name: str) -> M:
    """The network with the weights of its convolutions in this format. No value changes."""
    return model.to(memory_format=FORMATS[name])  # type: ignore[call-overload, no-any-return]
