"""Tiny-ImageNet-200: 100,000 training and 10,000 validation images of 64x64 pixels, decoded once."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from ausam_lab.data.download import Remote, folder_of
from ausam_lab.data.images import ImageSet
from ausam_lab.records import files

TINY = Remote("https://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de")
SIDE = 64

LabelledFiles = list[tuple[Path, int]]


def tiny_imagenet(data_dir: str) -> ImageSet:
    """Tiny-ImageNet from DATA_DIR/tiny-imagenet-200, downloaded if missing, cached in DATA_DIR/tiny-imagenet-200-uint8.

    The cache holds the decoded bytes, 1.4 GB, which are mapped into memory. The labelled validation images are the test
    set, because the labels of the official one are not published.
    """
    cache = Path(data_dir) / "tiny-imagenet-200-uint8"
    if (Path(data_dir) / "tiny-imagenet-200").exists() or not cache.exists():
        folder = folder_of(TINY, data_dir, "tiny-imagenet-200", ["wnids.txt", "train", "val/val_annotations.txt"])
        train, test = labelled_files(folder)
        _decode_once(cache, train, test)
    # Copy on write: torch needs writable memory, and the file must never change.
    x, y, test_x, test_y = (
        torch.from_numpy(np.load(cache / f"{name}.npy", mmap_mode="c" if name.endswith("x") else None))
        for name in ("train_x", "train_y", "test_x", "test_y")
    )
    classes = 1 + int(y.max())
    mean, std = (122.461, 114.257, 101.363), (70.624, 68.609, 71.930)
    return ImageSet("tiny-imagenet", x, y, test_x, test_y, classes, mean, std)


def labelled_files(folder: Path) -> tuple[LabelledFiles, LabelledFiles]:
    """Every image of the official layout with its class, the position of its WordNet id in sorted order."""
    number = {wnid: i for i, wnid in enumerate(sorted((folder / "wnids.txt").read_text().split()))}
    train = [
        (path, y) for wnid, y in number.items() for path in sorted((folder / "train" / wnid).glob("images/*.JPEG"))
    ]
    lines = [line.split("\t") for line in (folder / "val" / "val_annotations.txt").read_text().splitlines()]
    absent = set(number) - {path.parent.parent.name for path, _ in train}
    if absent or not lines or any(len(line) < 2 or line[1] not in number for line in lines):
        what = f"train/{min(absent)}/images is empty" if absent else "val/val_annotations.txt names no or other classes"
        raise ValueError(f"{folder} is not the official Tiny-ImageNet: {what}. Delete it, and it will be downloaded.")
    return train, [(folder / "val" / "images" / line[0], number[line[1]]) for line in lines]


def _decode_once(cache: Path, train: LabelledFiles, test: LabelledFiles) -> None:
    """Write the cache atomically, unless it was made from exactly these files."""
    content = "\n".join(f"{path.parent.parent.name}/{path.name} {y}" for path, y in [*train, *test])
    source = {"sha256": hashlib.sha256(content.encode()).hexdigest()}
    if files.read_json(cache / "source.json") == source:
        return
    console = Console(stderr=True)
    console.print(f"Decoding {len(train) + len(test):,} images into {cache} (once)", highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix=f".{cache.name}.", dir=cache.parent) as temporary:
        made = Path(temporary) / cache.name
        made.mkdir()
        for name, images in (("train", train), ("test", test)):
            header = {"descr": "|u1", "fortran_order": False, "shape": (len(images), 3, SIDE, SIDE)}
            shown = track(images, name, console=console, disable=not console.is_terminal)
            # Written, not mapped: a full disk kills a process that writes to a map; here it raises an error.
            with files.written(cache), (made / f"{name}_x.npy").open("wb") as out:
                np.save(made / f"{name}_y.npy", np.array([y for _, y in images], np.int64))
                np.lib.format.write_array_header_1_0(out, header)
                for path, _ in shown:
                    out.write(decode(path).tobytes())
        files.write_json(made / "source.json", source)
        if files.read_json(cache / "source.json") == source:
            return  # another process was faster
        if cache.exists():  # made from other files
            shutil.rmtree(cache)
        made.replace(cache)


def decode(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A picture as bytes (3, 64, 64); a grey one gets three equal planes."""
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("Reading JPEG files needs Pillow. Install it: pip install 'ausam[lab]'.") from None
    try:
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB"))
    except OSError as error:
        raise ValueError(f"{path} is not a readable picture ({error}). Replace it.") from None
    if pixels.shape != (SIDE, SIDE, 3):
        raise ValueError(
            f"{path} is {pixels.shape[1]}x{pixels.shape[0]} pixels, but Tiny-ImageNet's images are 64x64. Replace it."
        )
    return pixels.transpose(2, 0, 1)
