"""Images in class folders, the usual layout: PATH/train/CLASS/*.png and PATH/val or PATH/test."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ausam.lab.problems.user_datasets import UserSet, from_datasets

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
MEAN, STD = 0.5, 0.25  # of every channel: roughly those of photographs
SIZED = re.compile(r"(?P<path>.+)@(?P<size>\d{1,4})")


@dataclass(frozen=True)
class Pictures:
    """Files and their classes as a dataset of samples (x, y), each read on access."""

    files: tuple[Path, ...]
    targets: tuple[int, ...]
    size: int  # of the side in pixels; 0: unchanged

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        with Image.open(self.files[index]) as image:
            return pixels(image, self.size), self.targets[index]


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


def folder_data(name: str) -> UserSet:
    """The problem ``folder:PATH``, or ``folder:PATH@SIZE`` if the images differ in size."""
    text, size = sized(name.removeprefix("folder:"))
    place = Path(text)
    if not (place / "train").is_dir():
        raise ValueError(f"{name}: there is no folder {place / 'train'}. Create it, with a folder of images per class.")
    held_out = [place / which for which in ("val", "test") if (place / which).is_dir()]
    if not held_out:
        raise ValueError(f"{name}: {place} has neither a folder val nor a folder test. Add one to evaluate on.")
    classes = sorted(p.name for p in (place / "train").iterdir() if p.is_dir())
    only = sorted(p.name for p in held_out[0].iterdir() if p.is_dir() and p.name not in classes)
    if only:
        raise ValueError(
            f"{name}: {held_out[0]} has classes that {place / 'train'} lacks: {', '.join(only[:5])}. Use the same "
            "classes in both."
        )
    train, test = (_pictures(which, classes, size) for which in (place / "train", held_out[0]))
    if not size:
        _one_size(name, text, (*train.files, *test.files))
    return from_datasets(name, train, test, classes=len(classes))


def _pictures(place: Path, classes: list[str], size: int) -> Pictures:
    found = [
        (path, label)
        for label, cls in enumerate(classes)
        for path in sorted((place / cls).rglob("*"))
        if path.suffix.lower() in ENDINGS
    ]
    return Pictures(tuple(path for path, _ in found), tuple(label for _, label in found), size)


def _one_size(name: str, text: str, files: tuple[Path, ...]) -> None:
    """Raise a ValueError for images of different sizes; reads only their headers."""
    from PIL import Image, UnidentifiedImageError

    seen: dict[tuple[int, int], Path] = {}
    for path in files:
        try:
            with Image.open(path) as image:
                seen.setdefault(image.size, path)
        except UnidentifiedImageError:
            raise ValueError(f"{name}: {path} is not a readable image. Repair or remove it.") from None
        if len(seen) > 1:
            told = " and ".join(f"{w}x{h} ({path})" for (w, h), path in seen.items())
            raise ValueError(
                f"{name}: the images differ in size: {told}. Choose one size, e.g. --data folder:{text}@64."
            )
