"""Data sets of the Hugging Face package `datasets`: by name, or from a local folder of parquet files or images."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor

from ausam_lab.data.datasets import UserSet, from_datasets
from ausam_lab.data.pixels import pixels, sized

HELD_OUT = ("test", "validation", "val", "valid")


@dataclass(frozen=True)
class Rows:
    """A split as a dataset of samples (x, y); images are decoded on access."""

    split: Any
    image: str
    targets: tuple[int, ...]
    size: int

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return pixels(self.split[int(index)][self.image], self.size), self.targets[index]


def hf_data(name: str) -> UserSet:
    """The problem ``hf:PATH-or-NAME``, with ``@SIZE`` if the images differ in size."""
    if find_spec("datasets") is None:
        raise ValueError(f"{name} needs the package datasets. Install it: pip install 'ausam[datasets]'")
    text, size = sized(name.removeprefix("hf:"))
    splits = _splits(name, text)
    held_out = [which for which in HELD_OUT if which in splits]
    if "train" not in splits or not held_out:
        raise ValueError(
            f"{name} has the splits {', '.join(splits) or 'none'}, but needs train and one of {', '.join(HELD_OUT)}."
        )
    train, test = splits["train"], splits[held_out[0]]
    image, label = _columns(name, train)
    names = getattr(train.features[label], "names", None)
    rows = [Rows(split, image, tuple(split[label]), size) for split in (train, test)]
    return from_datasets(name, rows[0], rows[1], names=names)


def _splits(name: str, text: str) -> dict[str, Any]:
    import datasets

    folder = Path(text)
    try:
        if (folder / "dataset_dict.json").is_file():
            return dict(datasets.load_from_disk(text))
        if folder.is_dir() and (parquet := sorted(folder.rglob("*.parquet"))):
            files: dict[str, list[str]] = {}
            for path in parquet:  # train-00000-of-00001.parquet, or a folder of the split's name
                known = [w for w in ("train", *HELD_OUT) if path.name.startswith(w) or path.parent.name == w]
                files.setdefault(known[0] if known else "train", []).append(str(path))
            return dict(datasets.load_dataset("parquet", data_files=files))
        if folder.is_dir():
            return dict(datasets.load_dataset("imagefolder", data_dir=text))
        return dict(datasets.load_dataset(text))
    except (OSError, ValueError, RuntimeError) as error:
        why = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{name} cannot be loaded: {type(error).__name__}: {why}. Use a folder or the name of a known data set."
        ) from error


def _columns(name: str, split: Any) -> tuple[str, str]:
    """The names of the image column and of the label column."""
    from datasets import ClassLabel, Image

    images = [k for k, v in split.features.items() if isinstance(v, Image)]
    labels = [k for k, v in split.features.items() if isinstance(v, ClassLabel)]
    labels = labels or [k for k in ("label", "labels") if k in split.features]
    if len(images) != 1 or len(labels) != 1:
        there = ", ".join(f"{k} ({type(v).__name__})" for k, v in split.features.items())
        raise ValueError(f"{name} has the columns {there}, but needs one of images and one of class labels.")
    return images[0], labels[0]
