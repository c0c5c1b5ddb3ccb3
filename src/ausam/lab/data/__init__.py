"""Data sets: one file each, and one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ausam.lab.data.digits import digits
from ausam.lab.data.images import ImageSet, with_label_noise
from ausam.lab.names import find

__all__ = ["DATASETS", "DataSet", "ImageSet", "load"]


@dataclass(frozen=True)
class DataSet:
    """An entry of the table: how to load it, and the settings that suit it."""

    load: Callable[[str], ImageSet]
    about: str
    settings: dict[str, Any]


DATASETS = {
    "digits": DataSet(
        digits,
        "scikit-learn's 8x8 digits, embedded: 1,000 for training, 797 for testing",
        # One thread: these layers are so small that more only wait for each other.
        {
            "model": "resnet-tiny",
            "label_noise": 0.2,
            "epochs": 30,
            "batch_size": 64,
            "lr": 0.05,
            "rho": 0.2,
            "threads": 1,
        },
    ),
}


def load(name: str, data_dir: str, label_noise: float) -> ImageSet:
    """The data set of this name, with this part of its training labels made wrong."""
    return with_label_noise(find("data set", name, DATASETS).load(data_dir), label_noise)
