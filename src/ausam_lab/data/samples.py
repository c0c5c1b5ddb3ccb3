"""A training sample as a person sees it: a picture, or a text."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from ausam_lab.data.datasets import UserSet
from ausam_lab.data.images import ImageSet
from ausam_lab.data.loading import sample

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 96  # most pixels of a side; larger pictures are reduced
PIXELS = 48  # up to this side every pixel counts, so the picture is a PNG
LETTERS, NUMBERS = 2000, 60  # shown of a text, or of a sample that is no picture
ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"}  # of pictures that a browser opens


@dataclass(frozen=True)
class Shown:
    """A sample: its picture, or none, as PNG or WebP. A text, and the file that holds the original."""

    picture: bytes = b""
    form: str = ""  # of the picture: "png" or "webp"
    side: int = 0  # in pixels, before it was reduced
    text: str = ""  # the file, what the dataset says about the sample, or its first numbers
    file: Path | None = None  # None: no file, or none that a browser opens


def show(data: ImageSet | UserSet, index: int) -> Shown:
    """The training sample at this position of the prepared data.

    A dataset of yours may define ``describe(index)``: its text is shown with the sample. If it is the path of a
    picture, the picture is shown as the file has it.
    """
    if isinstance(data, ImageSet):
        return _shown(data.train_x[index], "")
    text = description(data, index)
    if (image := _picture(text)) is not None:
        file = Path(text)
        return Shown(*_encoded(image), text, file if file.suffix.lower() in ENDINGS else None)
    x = torch.as_tensor(sample(data.train, index, f"the training set of {data.name}")[0])
    return _shown(x, text)


def description(data: ImageSet | UserSet, index: int) -> str:
    """What the dataset itself calls the sample, such as the name of its file. Empty if it says nothing."""
    inner: Any = getattr(data, "train", None)
    while isinstance(inner, Subset):
        index, inner = inner.indices[index], inner.dataset
    describe = getattr(inner, "describe", None)
    return plain(str(describe(index))) if callable(describe) else ""


def plain(text: str) -> str:
    """Text that can be written anywhere: the name of a file need not be Unicode."""
    return text.encode(errors="replace").decode()


def _picture(path: str) -> Image | None:
    """The picture in a file, as small as it is shown. None if the text is no path of a picture."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            image.draft("RGB", (2 * SIDE, 2 * SIDE))  # decodes large JPEGs faster
            return ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _shown(x: Tensor, text: str) -> Shown:
    from PIL import Image

    x = x.detach().cpu()
    if x.dim() == 2 and min(x.shape) >= 4:
        x = x.unsqueeze(0)
    if x.dim() == 3 and x.shape[0] in (1, 3) and min(x.shape[1:]) >= 4:
        x = x if x.dtype == torch.uint8 else _stretched(x.float())
        pixels = x.permute(1, 2, 0).numpy()
        image = Image.fromarray(np.squeeze(pixels, 2) if pixels.shape[2] == 1 else pixels)
        return Shown(*_encoded(image), text)
    values = x.flatten()
    numbers = "  ".join(f"{float(v):.3g}" for v in values[:NUMBERS])
    return Shown(text=text[:LETTERS] or numbers + (" ..." if len(values) > NUMBERS else ""))


def _encoded(image: Image) -> tuple[bytes, str, int]:
    """The picture as it is shown, its form, and its side before it was reduced."""
    out, side = io.BytesIO(), max(image.size)
    small = side <= PIXELS
    image.thumbnail((SIDE, SIDE))
    if small:
        image.save(out, "PNG", optimize=True)
    else:
        image.save(out, "WEBP", quality=75)
    return out.getvalue(), "png" if small else "webp", side


def _stretched(x: Tensor) -> Tensor:
    """Bytes from the least to the greatest value."""
    x = x.nan_to_num()
    low, high = x.min(), x.max()
    return ((x - low) * (255 / (high - low).clamp(min=1e-12))).round().clamp(0, 255).byte()
