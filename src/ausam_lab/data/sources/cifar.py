"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60,000 colour images of 32x32 pixels, in the official binary form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ausam_lab.data.download import Remote, folder_of
from ausam_lab.data.images import ImageSet

CIFAR10 = Remote("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530")
CIFAR100 = Remote("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8")

IMAGE = 3 * 32 * 32  # bytes: red, green, blue, each row by row

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def cifar10(data_dir: str) -> ImageSet:
    """CIFAR-10 from DATA_DIR/cifar-10-batches-bin, downloaded if it is missing."""
    train = [f"data_batch_{i}.bin" for i in range(1, 6)]
    folder = folder_of(CIFAR10, data_dir, "cifar-10-batches-bin", [*train, "test_batch.bin"])
    x, y = _records([folder / name for name in train], label_bytes=1, classes=10)
    test_x, test_y = _records([folder / "test_batch.bin"], label_bytes=1, classes=10)
    mean, std = (125.307, 122.950, 113.865), (62.993, 62.089, 66.705)
    return ImageSet("cifar10", x, y, test_x, test_y, 10, mean, std, names=NAMES)


def cifar100(data_dir: str) -> ImageSet:
    """CIFAR-100 with its fine labels from DATA_DIR/cifar-100-binary, downloaded if it is missing."""
    folder = folder_of(CIFAR100, data_dir, "cifar-100-binary", ["train.bin", "test.bin"])
    x, y = _records([folder / "train.bin"], label_bytes=2, classes=100)
    test_x, test_y = _records([folder / "test.bin"], label_bytes=2, classes=100)
    mean, std = (129.304, 124.070, 112.434), (68.170, 65.392, 70.418)
    named = folder / "fine_label_names.txt"
    names = tuple(named.read_text().split()) if named.is_file() else ()
    return ImageSet("cifar100", x, y, test_x, test_y, 100, mean, std, names=names)


def _records(paths: list[Path], label_bytes: int, classes: int) -> tuple[Tensor, Tensor]:
    """Images and labels; the label is the last of the bytes before the image (CIFAR-100: coarse, then fine)."""
    size = label_bytes + IMAGE
    files = []
    for path in paths:
        raw = np.fromfile(path, np.uint8)
        if len(raw) == 0 or len(raw) % size or raw.reshape(-1, size)[:, label_bytes - 1].max() >= classes:
            raise ValueError(f"{path} is damaged: its size is not a multiple of {size} bytes. Delete its folder.")
        files.append(raw.reshape(-1, size))
    both = np.concatenate(files)
    x = np.ascontiguousarray(both[:, label_bytes:]).reshape(-1, 3, 32, 32)
    return torch.from_numpy(x), torch.from_numpy(both[:, label_bytes - 1].astype(np.int64))
