"""The data sets by name: how each is loaded, and the settings that suit it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from ausam.lab.config import Config
from ausam.lab.problems.download import DownloadError
from ausam.lab.problems.images import ImageSet
from ausam.lab.problems.labels import with_label_noise, with_sizes
from ausam.lab.problems.pose.problem import PoseSet
from ausam.lab.problems.sources.cifar import cifar10, cifar100
from ausam.lab.problems.sources.digits import digits
from ausam.lab.problems.sources.fashion import fashion_mnist
from ausam.lab.problems.sources.mpii import mpii
from ausam.lab.problems.sources.stick_figures import stick_figures
from ausam.lab.problems.sources.tiny import tiny_imagenet
from ausam.lab.problems.user_datasets import UserSet, user_data
from ausam.lab.registry.lookup import find
from ausam.lab.registry.user_code import is_own

__all__ = [
    "DATASETS",
    "DataSet",
    "DownloadError",
    "ImageSet",
    "PoseSet",
    "Problem",
    "UserSet",
    "load",
    "resolve",
    "suited",
]

Problem = ImageSet | UserSet | PoseSet


@dataclass(frozen=True)
class DataSet:
    """An entry of the table: how to load it, and the settings that suit it."""

    load: Callable[[str], ImageSet | PoseSet]
    about: str
    settings: dict[str, Any]


# The paper's, for ResNet-18.
PAPER = {
    "model": "resnet18",
    "epochs": 200,
    "batch_size": 128,
    "lr": 0.05,
    "weight_decay": 0.001,
    "rho": 0.1,
    "label_smoothing": 0.1,
    "augment": "cutout",
}

POSE_AUGMENTATIONS = ("none", "standard")

# The paper's for SimCC, and what it keeps of SimCC's own.
POSE = {
    "model": "hrnet-w32",
    "epochs": 210,
    "batch_size": 64,
    "base": "adam",
    "lr": 0.001,
    "lr_steps": "0.8095,0.9524",  # after 170 and 200 of 210
    "weight_decay": 0.0001,
    "rho": 0.05,
    "label_smoothing": 0.2,
    "augment": "standard",
    "workers": 4,
}

DATASETS: dict[str, DataSet] = {
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
    "fashion-mnist": DataSet(
        fashion_mnist,
        "grey 28x28 clothing in 10 classes: 60,000 for training, 10,000 for testing; 30 MB to download",
        {"model": "resnet-small", "epochs": 30, "batch_size": 128, "lr": 0.05, "rho": 0.1, "augment": "none"},
    ),
    "cifar10": DataSet(
        cifar10, "colour 32x32 in 10 classes: 50,000 for training, 10,000 for testing; 170 MB to download", PAPER
    ),
    "cifar100": DataSet(
        cifar100, "colour 32x32 in 100 classes: 50,000 for training, 10,000 for testing; 169 MB to download", PAPER
    ),
    "tiny-imagenet": DataSet(
        tiny_imagenet,
        "colour 64x64 in 200 classes: 100,000 for training, 10,000 for testing; 248 MB to download",
        PAPER,
    ),
    "stick-figures": DataSet(
        stick_figures,
        "poses: drawn figures of 64x64 with 16 joints, embedded: 1,000 for training, 250 for testing",
        POSE
        | {
            "model": "hrnet-w16-small",
            "epochs": 20,
            "batch_size": 32,
            "lr": 0.005,
            "ramp": 3,  # of 20 epochs, as 30 of 210
            "augment": "none",
            "workers": 0,
            "threads": 1,
        },
    ),
    "mpii": DataSet(mpii, "poses: people with 16 joints, shown at 256x256; its files must be fetched by hand", POSE),
}


def resolve(**given: Any) -> Config:
    """The settings given, the data set's own for the rest, and Config's defaults for what remains."""
    config = Config(**{**suited(given.get("data", "digits")), **given})
    if config.device == "auto":
        config = replace(config, device="cuda" if torch.cuda.is_available() else "cpu")
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f'device is "{config.device}", but torch sees no CUDA device here. Use --device cpu.')
    return config


def suited(name: str) -> dict[str, Any]:
    """The settings that suit a data set; of the user's own none are known."""
    return {} if is_own(name) else _entry(name).settings


def load(
    name: str,
    data_dir: str = "data",
    label_noise: float = 0.0,
    *,
    train_size: int = 0,
    test_size: int = 0,
    augment: str = "none",
    workers: int = 0,
    device: str = "cpu",
) -> Problem:
    """The data set of this name, or of the user's ``module:function``, with this part of its training labels wrong.

    Loaded once: the runs of a comparison share it, so it must not be changed in place.
    """
    place = os.getcwd() if is_own(name) else os.path.abspath(data_dir)
    return _load(name, data_dir, place, label_noise, train_size, test_size, augment, workers, device)


@lru_cache(maxsize=1)
def _load(
    name: str,
    data_dir: str,
    place: str,  # noqa: ARG001  (the same name elsewhere is another data set)
    label_noise: float,
    train_size: int,
    test_size: int,
    augment: str,
    workers: int,
    device: str,
) -> Problem:
    found = user_data(name, workers) if is_own(name) else _entry(name).load(data_dir)
    if isinstance(found, UserSet):
        if augment != "none":
            raise ValueError(
                f'augment is "{augment}", but {name} returns datasets, which augment by themselves. Use --augment none.'
            )
        return with_label_noise(with_sizes(found, train_size, test_size), label_noise).to(device)
    if isinstance(found, PoseSet):
        return _poses(with_sizes(found, train_size, test_size), label_noise, augment, workers).to(device)
    found = with_label_noise(with_sizes(found, train_size, test_size), label_noise)
    return replace(found, augment=augment).to(device)


def _poses(found: PoseSet, label_noise: float, augment: str, workers: int) -> PoseSet:
    if label_noise:
        raise ValueError(
            f"label_noise is {label_noise}, but {found.name} has joints, not labels that could be wrong. "
            "Use --label-noise 0."
        )
    if augment not in POSE_AUGMENTATIONS:
        raise ValueError(f'augment is "{augment}", but poses know {" and ".join(POSE_AUGMENTATIONS)} only.')
    return replace(found, augment=augment, workers=workers)


def _entry(name: str) -> DataSet:
    return find("data set", name, DATASETS, ", or your own as module:function")
