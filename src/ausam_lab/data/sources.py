"""The published image data sets: their files, downloaded once and checked, and how they are read."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from ausam.common.random import generator
from ausam_lab.data.images import ImageSet
from ausam_lab.records.files import RunError


class DownloadError(RunError):
    """A file could not be downloaded, or is not the published one."""


class Remote(NamedTuple):
    """A published file: its address and its checksum."""

    url: str
    md5: str


CIFAR = "https://www.cs.toronto.edu/~kriz"
FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
REMOTES = {
    "cifar10": Remote(f"{CIFAR}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar100": Remote(f"{CIFAR}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    "train-images-idx3-ubyte": Remote(f"{FASHION}/train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train-labels-idx1-ubyte": Remote(f"{FASHION}/train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
    "t10k-images-idx3-ubyte": Remote(f"{FASHION}/t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
    "t10k-labels-idx1-ubyte": Remote(f"{FASHION}/t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    "tiny-imagenet": Remote("https://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),
}
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION_NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


# -- downloads -------------------------------------------------------------------------------------------------------


def fetch(remote: Remote, folder: Path) -> Path:
    """The file in ``folder``, downloaded if it is missing. A DownloadError unless it is the published one."""
    target = folder / remote.url.rpartition("/")[2]
    there = target.exists()
    if not there:
        folder.mkdir(parents=True, exist_ok=True)
        console = Console(stderr=True)
        console.print(f"Downloading {remote.url}", highlight=False, soft_wrap=True)
        try:
            torch.hub.download_url_to_file(remote.url, str(target), progress=console.is_terminal)
        except OSError as error:
            raise DownloadError(
                f"{target.name} could not be downloaded ({error}). Run the same command again, or download "
                f"{remote.url} on another machine and put it at {target}."
            ) from error
    with target.open("rb") as file:
        actual = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if actual != remote.md5:
        if not there:
            target.unlink()
        raise DownloadError(
            f"{target} is incomplete or not the published file: its MD5 is {actual}, not {remote.md5}. Delete it "
            f"if it exists and try again, or put {remote.url} there."
        )
    return target


def folder_of(remote: Remote, data_dir: str, inside: str) -> Path:
    """The folder DATA_DIR/inside of an archive: as found there, or downloaded and unpacked."""
    folder = Path(data_dir) / inside
    if not folder.exists():
        archive = fetch(remote, Path(data_dir))
        with tempfile.TemporaryDirectory(prefix=f".{inside}.", dir=data_dir) as temporary:
            how = {} if archive.suffix == ".zip" else {"filter": "data"}
            shutil.unpack_archive(archive, temporary, **how)  # type: ignore[arg-type]
            with contextlib.suppress(OSError):  # another process was faster, and its folder is as good
                (Path(temporary) / inside).replace(folder)
    return folder


# -- digits ----------------------------------------------------------------------------------------------------------


def digits(data_dir: str = "") -> ImageSet:  # noqa: ARG001  (nothing to download)
    """scikit-learn's digits, 8x8 pixels: 1,000 for training and the other 797 for testing, always the same ones."""
    from sklearn.datasets import load_digits  # imported here because it takes a second

    loaded = load_digits()
    x = torch.tensor(loaded.images, dtype=torch.float32).unsqueeze(1) / 16.0
    y = torch.tensor(loaded.target, dtype=torch.int64)
    order = torch.randperm(len(y), generator=generator(0))
    train, test = order[:1000], order[1000:]
    mean, std = float(x[train].mean()), float(x[train].std())
    return ImageSet("digits", x[train], y[train], x[test], y[test], 10, (mean,), (std,))


# -- CIFAR (Krizhevsky 2009), in the official binary form ------------------------------------------------------------


def cifar10(data_dir: str) -> ImageSet:
    """CIFAR-10 from DATA_DIR/cifar-10-batches-bin, downloaded if it is missing."""
    folder = folder_of(REMOTES["cifar10"], data_dir, "cifar-10-batches-bin")
    x, y = _records([folder / f"data_batch_{i}.bin" for i in range(1, 6)], label_bytes=1)
    test_x, test_y = _records([folder / "test_batch.bin"], label_bytes=1)
    mean, std = (125.307, 122.950, 113.865), (62.993, 62.089, 66.705)
    return ImageSet("cifar10", x, y, test_x, test_y, 10, mean, std, names=CIFAR10_NAMES)


def cifar100(data_dir: str) -> ImageSet:
    """CIFAR-100 with its fine labels from DATA_DIR/cifar-100-binary, downloaded if it is missing."""
    folder = folder_of(REMOTES["cifar100"], data_dir, "cifar-100-binary")
    x, y = _records([folder / "train.bin"], label_bytes=2)
    test_x, test_y = _records([folder / "test.bin"], label_bytes=2)
    mean, std = (129.304, 124.070, 112.434), (68.170, 65.392, 70.418)
    named = folder / "fine_label_names.txt"
    names = tuple(named.read_text().split()) if named.is_file() else ()
    return ImageSet("cifar100", x, y, test_x, test_y, 100, mean, std, names=names)


def _records(paths: list[Path], label_bytes: int) -> tuple[Tensor, Tensor]:
    """Images and labels. The label is the last of the bytes before the image (CIFAR-100: coarse, then fine)."""
    both = np.concatenate([np.fromfile(path, np.uint8) for path in paths]).reshape(-1, label_bytes + 3 * 32 * 32)
    x = np.ascontiguousarray(both[:, label_bytes:]).reshape(-1, 3, 32, 32)
    return torch.from_numpy(x), torch.from_numpy(both[:, label_bytes - 1].astype(np.int64))


# -- Fashion-MNIST (Xiao 2017), in idx files -------------------------------------------------------------------------


def fashion_mnist(data_dir: str) -> ImageSet:
    """Fashion-MNIST from the packed files in DATA_DIR/fashion-mnist, downloaded if they are missing."""
    names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    x, y, test_x, test_y = (_idx(fetch(REMOTES[name], Path(data_dir) / "fashion-mnist")) for name in names)
    x, test_x, mean, std = x.unsqueeze(1), test_x.unsqueeze(1), (72.940,), (90.021,)
    return ImageSet("fashion-mnist", x, y.long(), test_x, test_y.long(), 10, mean, std, names=FASHION_NAMES)


def _idx(path: Path) -> Tensor:
    """A packed idx file of bytes: 0, 0, 8, the number of dimensions, their sizes as big-endian words, the content."""
    raw = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(raw, ">u4", raw[3], 4)
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * len(shape)).reshape(shape).copy())


# -- Tiny-ImageNet-200: JPEG files, decoded once ---------------------------------------------------------------------


def tiny_imagenet(data_dir: str) -> ImageSet:
    """Tiny-ImageNet from DATA_DIR/tiny-imagenet-200, downloaded if it is missing.

    The images are decoded once, to DATA_DIR/tiny-imagenet-200-uint8, 1.4 GB that are mapped into memory. The labelled
    validation images are the test set, because the labels of the official one are not published.
    """
    decoded = Path(data_dir) / "tiny-imagenet-200-uint8"
    if not decoded.exists():
        _decode(folder_of(REMOTES["tiny-imagenet"], data_dir, "tiny-imagenet-200"), decoded)
    # Copy on write: torch needs writable memory, and the file must never change.
    x, test_x = (torch.from_numpy(np.load(decoded / f"{part}_x.npy", mmap_mode="c")) for part in ("train", "test"))
    y, test_y = (torch.from_numpy(np.load(decoded / f"{part}_y.npy")) for part in ("train", "test"))
    mean, std = (122.461, 114.257, 101.363), (70.624, 68.609, 71.930)
    return ImageSet("tiny-imagenet", x, y, test_x, test_y, 1 + int(y.max()), mean, std)


def _decode(folder: Path, target: Path) -> None:
    """Decode every image of the official layout. A class is the position of its WordNet id in sorted order."""
    number = {wnid: i for i, wnid in enumerate(sorted((folder / "wnids.txt").read_text().split()))}
    lines = (folder / "val" / "val_annotations.txt").read_text().splitlines()
    parts = {
        "train": [
            (path, y) for wnid, y in number.items() for path in sorted((folder / "train" / wnid).rglob("*.JPEG"))
        ],
        "test": [(folder / "val" / "images" / name, number[wnid]) for name, wnid, *_ in map(str.split, lines)],
    }
    console = Console(stderr=True)
    console.print(f"Decoding the images into {target} (once)", highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        made = Path(temporary) / target.name
        made.mkdir()
        for part, images in parts.items():
            np.save(made / f"{part}_y.npy", np.array([y for _, y in images], np.int64))
            header = {"descr": "|u1", "fortran_order": False, "shape": (len(images), 3, 64, 64)}
            # Written, not mapped: a full disk kills a process that writes to a map; here it raises an error.
            with (made / f"{part}_x.npy").open("wb") as out:
                np.lib.format.write_array_header_1_0(out, header)
                for path, _ in track(images, part, console=console, disable=not console.is_terminal):
                    out.write(_pixels(path).tobytes())
        made.replace(target)


def _pixels(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A picture as bytes (3, 64, 64). A grey one gets three equal planes."""
    from PIL import Image

    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).transpose(2, 0, 1)
