"""Images of any size as tensors of one size."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

MEAN, STD = 0.5, 0.25  # of every channel: roughly those of photographs
SIZED = re.compile(r"(?P<path>.+)@(?P<size>\d{1,4})")


def pixels(image: Any, size: int) -> Tensor:
    """An image as normalised floats (3, height, width); resized and cropped to its centre unless ``size`` is 0."""
    from PIL import ImageOps

    image = image.convert("RGB")
    image = ImageOps.fit(image, (size, size)) if size else image
    x = torch.from_numpy(np.array(image, dtype=np.float32)).permute(2, 0, 1).contiguous()
    return x.div_(255).sub_(MEAN).div_(STD)


def sized(text: str) -> tuple[str, int]:
    """``PATH@64`` as the path and the size; 0 without one."""
    match = SIZED.fullmatch(text)
    if match is not None and not int(match["size"]):
        raise ValueError(f'"{text}": the number after @ is the side of the images in pixels. Use 1 or more.')
    return (match["path"], int(match["size"])) if match else (text, 0)
