"""Images in class folders, the usual layout: PATH/train/CLASS/*.png and PATH/val or PATH/test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ausam_lab.data.datasets import UserSet, from_datasets
from ausam_lab.data.pixels import pixels, sized

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True)
class ImageFiles:
    """Files and their classes as a dataset of samples (x, y), each read on access."""

    files: tuple[Path, ...]
    targets: tuple[int, ...]
    size: int  # of the side in pixels; 0: unchanged

    def describe(self, index: int) -> str:
        """The file of a sample."""
        return str(self.files[index])

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        with Image.open(self.files[index]) as image:
            return pixels(image, self.size), self.targets[index]


def folder_data(name: str) -> UserSet:
    """The problem ``folder:PATH``, or ``folder:PATH@SIZE`` if the images differ in size."""
    text, size = sized(name.removeprefix("folder:"))
    folder = Path(text)
    if not (folder / "train").is_dir():
        raise ValueError(
            f"{name}: there is no folder {folder / 'train'}. Create it, with a folder of images per class."
        )
    held_out = [folder / which for which in ("val", "test") if (folder / which).is_dir()]
    if not held_out:
        raise ValueError(f"{name}: {folder} has neither a folder val nor a folder test. Add one to evaluate on.")
    classes = sorted(p.name for p in (folder / "train").iterdir() if p.is_dir())
    only = sorted(p.name for p in held_out[0].iterdir() if p.is_dir() and p.name not in classes)
    if only:
        raise ValueError(
            f"{name}: {held_out[0]} has classes that {folder / 'train'} lacks: {', '.join(only[:5])}. Use the same "
            "classes in both."
        )
    train, test = (_pictures(which, classes, size) for which in (folder / "train", held_out[0]))
    if not size:
        _one_size(name, text, (*train.files, *test.files))
    return from_datasets(name, train, test, names=classes)


def _pictures(folder: Path, classes: list[str], size: int) -> ImageFiles:
    pictures = [
        (path, label)
        for label, cls in enumerate(classes)
        for path in sorted((folder / cls).rglob("*"))
        if path.suffix.lower() in ENDINGS and _ordinary(path)
    ]
    return ImageFiles(tuple(path for path, _ in pictures), tuple(label for _, label in pictures), size)


def _ordinary(path: Path) -> bool:
    """Whether it is a file; a ValueError for a pipe or a device, which would be waited for."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError(f"{path} is a pipe or a device, not an image. Remove it.")
    return path.is_file()


def _one_size(name: str, text: str, files: tuple[Path, ...]) -> None:
    """Raise a ValueError for images of different sizes; reads only their headers."""
    from PIL import Image, UnidentifiedImageError

    seen: dict[tuple[int, int], Path] = {}
    for path in files:
        try:
            with Image.open(path) as image:
                seen.setdefault(image.size, path)
        except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError) as error:
            why = "" if isinstance(error, UnidentifiedImageError) else f" ({str(error).rstrip('.')})"
            raise ValueError(f"{name}: {path} is not a readable image{why}. Repair or remove it.") from None
        if len(seen) > 1:
            sizes = " and ".join(f"{w}x{h} ({path})" for (w, h), path in seen.items())
            raise ValueError(
                f"{name}: the images differ in size: {sizes}. Choose one size, e.g. --data folder:{text}@64."
            )
