"""Fashion-MNIST (Xiao 2017): 70,000 grey images of 28x28 pixels, ten kinds of clothing, in idx files."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ausam_lab.data.download import Remote, fetch
from ausam_lab.data.images import ImageSet

SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FILES = {
    "train-images-idx3-ubyte": Remote(f"{SITE}/train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train-labels-idx1-ubyte": Remote(f"{SITE}/train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
    "t10k-images-idx3-ubyte": Remote(f"{SITE}/t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
    "t10k-labels-idx1-ubyte": Remote(f"{SITE}/t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
}

NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def fashion_mnist(data_dir: str) -> ImageSet:
    """Fashion-MNIST from DATA_DIR/fashion-mnist or torchvision's DATA_DIR/FashionMNIST/raw, downloaded if missing."""
    x, y, test_x, test_y = (_idx(_file(name, Path(data_dir))) for name in FILES)
    for images, labels in ((x, y), (test_x, test_y)):
        if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
            raise ValueError(
                f"Fashion-MNIST in {data_dir} is damaged: the numbers of images and labels differ. Delete its files."
            )
    x, test_x, mean, std = x.unsqueeze(1), test_x.unsqueeze(1), (72.940,), (90.021,)
    return ImageSet("fashion-mnist", x, y.long(), test_x, test_y.long(), 10, mean, std, names=NAMES)


def _file(name: str, data_dir: Path) -> Path:
    for folder in (data_dir / "fashion-mnist", data_dir / "FashionMNIST" / "raw"):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.exists():
                return path
    return fetch(FILES[name], data_dir / "fashion-mnist")


def _idx(path: Path) -> Tensor:
    """An idx file of bytes: 0, 0, 8, the number of dimensions, their sizes as big-endian words, the content."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        dimensions = raw[3] if raw[:3] == b"\0\0\x08" else 0
        shape = np.frombuffer(raw, ">u4", dimensions, 4).tolist()
        if not dimensions or len(raw) != 4 + 4 * dimensions + int(np.prod(shape)):
            raise ValueError("its size does not match its header")
    except (OSError, EOFError, ValueError, IndexError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}). Delete it, and it will be downloaded again.") from None
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy())
