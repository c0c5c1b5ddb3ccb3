"""The data sets by name: how each is loaded, its shape, and the settings that suit it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from ausam_lab.config import Config
from ausam_lab.data.datasets import user_data
from ausam_lab.data.folders import folder_data, hf_data
from ausam_lab.data.labels import split_for_selection
from ausam_lab.data.problem import Problem
from ausam_lab.data.sources import cifar10, cifar100, digits, fashion_mnist, tiny_imagenet
from ausam_lab.names.expressions import canonical
from ausam_lab.names.lookup import device, find
from ausam_lab.names.user_code import OWN, is_own


@dataclass(frozen=True)
class Entry:
    """A data set: its loader, a description, what is known before it is loaded, and the settings that suit it."""

    load: Callable[[str], Problem]
    about: str
    image: tuple[int, ...]  # the shape of a sample: channels, height and width
    num_outputs: int  # classes or joints
    train: int
    test: int
    settings: dict[str, Any]


# The paper's settings for ResNet-18.
PAPER = {
    "model": "resnet18",
    "epochs": 200,
    "batch_size": 128,
    "lr": 0.05,
    "weight_decay": 0.001,
    "rho": 0.1,
    "s_max": 0.5,  # of AUSampling, for the smaller networks
    "label_smoothing": 0.1,
    "augment": "cutout",
}

DATASETS: dict[str, Entry] = {
    "digits": Entry(
        load=digits,
        about="scikit-learn's 8x8 digits, embedded: 1,000 for training, 797 for testing",
        image=(1, 8, 8),
        num_outputs=10,
        train=1_000,
        test=797,
        settings={
            "model": "resnet-tiny",
            "label_noise": 0.2,
            "epochs": 30,
            "batch_size": 64,
            "lr": 0.05,
            "rho": 0.2,
            "threads": 1,  # the layers are so small that more threads would only wait for each other
        },
    ),
    "fashion-mnist": Entry(
        load=fashion_mnist,
        about="grey 28x28 clothing in 10 classes: 60,000 for training, 10,000 for testing, 30 MB to download",
        image=(1, 28, 28),
        num_outputs=10,
        train=60_000,
        test=10_000,
        settings={"model": "resnet-small", "epochs": 30, "batch_size": 128, "lr": 0.05, "rho": 0.1, "augment": "none"},
    ),
    "cifar10": Entry(
        load=cifar10,
        about="colour 32x32 in 10 classes: 50,000 for training, 10,000 for testing, 170 MB to download",
        image=(3, 32, 32),
        num_outputs=10,
        train=50_000,
        test=10_000,
        settings=PAPER,
    ),
    "cifar100": Entry(
        load=cifar100,
        about="colour 32x32 in 100 classes: 50,000 for training, 10,000 for testing, 169 MB to download",
        image=(3, 32, 32),
        num_outputs=100,
        train=50_000,
        test=10_000,
        settings=PAPER,
    ),
    "tiny-imagenet": Entry(
        load=tiny_imagenet,
        about="colour 64x64 in 200 classes: 100,000 for training, 10,000 for testing, 248 MB to download",
        image=(3, 64, 64),
        num_outputs=200,
        train=100_000,
        test=10_000,
        settings=PAPER,
    ),
}


def entry(name: str) -> Entry:
    """The data set of this name, or a ValueError."""
    if name.lower() not in DATASETS and os.path.isdir(name):
        raise ValueError(f'There is no data set "{name}". For images in class folders write --data folder:{name}.')
    return find("data set", name, DATASETS, OWN)


def defaults_for(name: str) -> dict[str, Any]:
    """The settings that suit a data set. None for a user-defined one."""
    return {} if is_own(name) else entry(name).settings


def resolve(**given: Any) -> Config:
    """The settings given, then those of the data set, then Config's defaults."""
    config = Config(**{**defaults_for(given.get("data", Config.data)), **given})
    if config.tensorboard and find_spec("tensorboard") is None:
        raise ValueError("--tensorboard needs the package tensorboard. Install it: pip install tensorboard")
    return replace(
        config,
        device=device(config.device),
        method=canonical("method", config.method),
        policy=canonical("policy", config.policy),
    )


def problem(config: Config) -> Problem:
    """The data of a run, loaded once and shared by the runs of a comparison: it must not be changed in place."""
    where = os.getcwd() if is_own(config.data) else os.path.abspath(config.data_dir)
    return _read(config.data, config.data_dir, where).prepare(replace(config, data_seed=data_seed(config)))


def split_problem(config: Config) -> tuple[Problem, Problem | None]:
    """The data of a run without the samples that select its epoch, and a problem whose test samples these are."""
    seed = config.seed if config.data_seed is None else config.data_seed
    return split_for_selection(problem(config), config.select_epoch, seed)


def data_seed(config: Config) -> int:
    """The seed of the draws from the data. 0 if there are none, so that all seeds share one data set."""
    draws = config.label_noise, config.imbalance not in (0, 1), config.validation, config.train_size, config.test_size
    if not any(draws):
        return 0
    return config.seed if config.data_seed is None else config.data_seed


@lru_cache(maxsize=1)
def _read(name: str, data_dir: str, where: str) -> Problem:  # noqa: ARG001  (other data elsewhere)
    kind = name.partition(":")[0]
    if is_own(name):
        return {"folder": folder_data, "hf": hf_data}.get(kind, user_data)(name)
    return entry(name).load(data_dir)


def changes(config: Config) -> str:
    """The changes that a run makes to its data, as a suffix: ", long tail 0.05, 20 % wrong labels"."""
    tail = f", long tail {config.imbalance:g}" if config.imbalance not in (0, 1) else ""
    noise = f", {100 * config.label_noise:g} % wrong labels" if config.label_noise else ""
    return tail + noise + (", corrected labels" if config.labels else "")
