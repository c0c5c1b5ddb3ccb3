"""Images by their location: ``folder:PATH`` with a folder per class, and ``hf:PATH-or-NAME`` of Hugging Face."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ausam_lab.data.datasets import UserSet, from_datasets
from ausam_lab.data.labels import with_validation

log = logging.getLogger("ausam")

MEAN, STD = 0.5, 0.25  # of every channel: roughly those of photographs
ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
HELD_OUT = ("val", "test", "validation", "valid")
PART = 0.2  # of each class, held out where there is no such folder or split
SIZED = re.compile(r"(?P<path>.+)@(?P<size>[1-9]\d{0,3})")


@dataclass(frozen=True)
class Pictures:
    """Pictures and their classes as a dataset of samples (x, y), each read on access."""

    images: Sequence[Any]  # paths, or a column of Hugging Face, which decodes an image on access
    targets: tuple[int, ...]
    size: int  # of the side in pixels. 0: unchanged

    def describe(self, index: int) -> str:
        """The file of a sample, if it has one."""
        return str(self.images[index]) if isinstance(self.images, tuple) else ""

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        image = self.images[int(index)]
        if not isinstance(image, Path):
            return pixels(image, self.size), self.targets[index]
        with Image.open(image) as opened:
            return pixels(opened, self.size), self.targets[index]


def folder_data(name: str) -> UserSet:
    """The problem ``folder:PATH``, or ``folder:PATH@SIZE`` if the images differ in size.

    PATH has folders train and val (or test), each with a folder of images per class. Or a folder per class itself. Then
    a fifth of each class is held out for testing.
    """
    folder, size = _sized(name.removeprefix("folder:"))
    held_out = next((folder / which for which in HELD_OUT if (folder / which).is_dir()), None)
    train = folder / "train" if held_out or (folder / "train").is_dir() else folder
    classes = sorted(path.name for path in train.iterdir() if path.is_dir()) if train.is_dir() else []
    if len(classes) < 2:
        raise ValueError(f"{name}: {train} has no folders of images. Make a folder there for each of the classes.")
    files = _files(train, classes, size)
    tested = files if held_out is None else _files(held_out, classes, size)
    if not size:
        _require_one_size(name, (*files.images, *tested.images))
    data = from_datasets(name, files, tested, names=classes)
    return _split(data) if held_out is None else data


def hf_data(name: str) -> UserSet:
    """The problem ``hf:PATH-or-NAME``, with ``@SIZE`` if the images differ in size."""
    if find_spec("datasets") is None:
        raise ValueError(f"{name} needs the package datasets. Install it: pip install datasets")
    import datasets

    path, size = _sized(name.removeprefix("hf:"))
    try:
        saved = (path / "dataset_dict.json").is_file()
        splits = datasets.load_from_disk(str(path)) if saved else datasets.load_dataset(str(path))
        train, held_out = splits["train"], next((splits[which] for which in HELD_OUT if which in splits), None)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ValueError(
            f"{name} cannot be loaded: {type(error).__name__}: {error}. Use a folder or the name of a data set with a "
            "split train."
        ) from error
    images = [key for key, kind in train.features.items() if isinstance(kind, datasets.Image)]
    labels = [key for key, kind in train.features.items() if isinstance(kind, datasets.ClassLabel) or key == "label"]
    if len(images) != 1 or len(labels) != 1:
        there = ", ".join(f"{key} ({type(kind).__name__})" for key, kind in train.features.items())
        raise ValueError(f"{name} has the columns {there}, but needs one of images and one of class labels.")
    names = getattr(train.features[labels[0]], "names", ())
    rows, tested = (
        Pictures(split[images[0]], tuple(split[labels[0]]), size)
        for split in (train, train if held_out is None else held_out)
    )
    data = from_datasets(name, rows, tested, names=names)
    return _split(data) if held_out is None else data


def _split(data: UserSet) -> UserSet:
    """Hold out a fifth of each class for testing, the same samples for every seed."""
    log.warning("%s has no test images: %g %% of each class are held out for testing.", data.name, 100 * PART)
    return replace(with_validation(data, PART), evaluated_on="test")


def _files(folder: Path, classes: list[str], size: int) -> Pictures:
    pictures = [
        (path, label)
        for label, cls in enumerate(classes)
        for path in sorted((folder / cls).rglob("*"))
        if path.suffix.lower() in ENDINGS and path.is_file()
    ]
    return Pictures(tuple(path for path, _ in pictures), tuple(label for _, label in pictures), size)


def _require_one_size(name: str, files: tuple[Path, ...]) -> None:
    """Raise a ValueError for an unreadable image, or for images of different sizes. Reads only their headers."""
    from PIL import Image

    seen: dict[tuple[int, int], Path] = {}
    for path in files:
        try:
            with Image.open(path) as image:
                seen.setdefault(image.size, path)
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise ValueError(f"{name}: {path} is not a readable image ({error}). Repair or remove it.") from None
        if len(seen) > 1:
            sizes = " and ".join(f"{w}x{h} ({path})" for (w, h), path in seen.items())
            raise ValueError(f"{name}: the images differ in size: {sizes}. Choose one size, e.g. --data {name}@64.")


def pixels(image: Any, size: int) -> Tensor:
    """An image as normalised floats (3, height, width). Resized and cropped to its centre unless ``size`` is 0."""
    from PIL import ImageOps

    image = image.convert("RGB")
    image = ImageOps.fit(image, (size, size)) if size else image
    x = torch.from_numpy(np.array(image, dtype=np.float32)).permute(2, 0, 1).contiguous()
    return x.div_(255).sub_(MEAN).div_(STD)


def _sized(text: str) -> tuple[Path, int]:
    """``PATH@64`` as the path and the size. 0 without one."""
    match = SIZED.fullmatch(text)
    return (Path(match["path"]), int(match["size"])) if match else (Path(text), 0)
