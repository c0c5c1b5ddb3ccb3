"""A training sample as a person sees it: a picture, or a line of text."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils.data import Subset

from ausam_lab.data.datasets import UserSet
from ausam_lab.data.images import ImageSet
from ausam_lab.data.loading import sample

SIDE = 96  # most pixels of a side; larger pictures are reduced
NUMBERS = 12  # shown of a sample that is no picture


@dataclass(frozen=True)
class Shown:
    """A sample: the picture as PNG, or empty; its description, or its first numbers; the side in pixels."""

    png: bytes
    text: str
    side: int = 0


def show(data: ImageSet | UserSet, index: int) -> Shown:
    """The training sample at this position of the prepared data.

    A dataset of yours may define ``describe(index)``: its text is shown with the sample.
    """
    if isinstance(data, ImageSet):
        return _shown(data.train_x[index], "")
    x = torch.as_tensor(sample(data.train, index, f"the training set of {data.name}")[0])
    return _shown(x, description(data, index))


def description(data: ImageSet | UserSet, index: int) -> str:
    """What the dataset itself calls the sample, such as the name of its file; empty if it says nothing."""
    inner: Any = getattr(data, "train", None)
    while isinstance(inner, Subset):
        index, inner = inner.indices[index], inner.dataset
    describe = getattr(inner, "describe", None)
    return str(describe(index)) if callable(describe) else ""


def _shown(x: Tensor, text: str) -> Shown:
    x = x.detach().cpu()
    if x.dim() == 2 and min(x.shape) >= 4:
        x = x.unsqueeze(0)
    if x.dim() == 3 and x.shape[0] in (1, 3) and min(x.shape[1:]) >= 4:
        return Shown(png(x), text, max(x.shape[1:]))
    values = x.flatten()
    numbers = " ".join(f"{float(v):.3g}" for v in values[:NUMBERS])
    return Shown(b"", text or numbers + (" ..." if len(values) > NUMBERS else ""))


def png(x: Tensor) -> bytes:
    """An image (channels, height, width) as PNG; floats from their least to their greatest."""
    from PIL import Image

    x = x.float() if x.dtype == torch.uint8 else _stretched(x.float())
    if max(x.shape[1:]) > SIDE:
        scale = SIDE / max(x.shape[1:])
        size = [max(1, round(scale * side)) for side in x.shape[1:]]
        x = F.interpolate(x[None], size=size, mode="bilinear", antialias=True)[0]
    pixels = x.round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    out = io.BytesIO()
    Image.fromarray(np.squeeze(pixels, 2) if pixels.shape[2] == 1 else pixels).save(out, "PNG", optimize=True)
    return out.getvalue()


def _stretched(x: Tensor) -> Tensor:
    x = x.nan_to_num()
    low, high = x.min(), x.max()
    return (x - low) * (255 / (high - low).clamp(min=1e-12))
