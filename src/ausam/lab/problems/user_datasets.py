"""Data of the user's own: a pair of torch datasets, named as module:function."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, TensorDataset

from ausam import Indexed, SelectiveBatchSampler
from ausam.lab.problems.classification import Labelled
from ausam.lab.problems.images import ImageSet
from ausam.lab.problems.labels import arranged
from ausam.lab.problems.loading import loaded, sample
from ausam.lab.problems.problem import Wanted
from ausam.lab.registry.user_code import imported
from ausam.random import generator

log = logging.getLogger("ausam")


@dataclass(frozen=True)
class UserSet(Labelled):
    """A classification problem given as two datasets of samples (x, y); augmentation is their own affair."""

    name: str
    train: Any
    test: Any
    train_y: Tensor
    test_y: Tensor
    classes: int
    workers: int = 0
    device: str = "cpu"
    wrong: Tensor | None = None  # which training labels were made wrong
    long_tailed: bool = False
    judged_by: str = "test"

    @property
    def channels(self) -> int:
        """The first dimension of a sample: the planes of an image, the length of a vector."""
        return self.example().shape[1]

    def prepared(self, wanted: Wanted) -> UserSet:
        """As a run asks for it; a ValueError for an augmentation, which is the datasets' own affair."""
        if wanted.augment != "none":
            raise ValueError(
                f'augment is "{wanted.augment}", but {self.name} returns datasets, which augment by themselves. '
                "Use --augment none."
            )
        return replace(arranged(self, wanted), workers=wanted.workers, device=wanted.device)

    def part(self, train: Tensor, test: Tensor) -> UserSet:
        """Only these samples."""
        return replace(
            self,
            train=Subset(self.train, train.tolist()),
            train_y=self.train_y[train],
            test=Subset(self.test, test.tolist()),
            test_y=self.test_y[test],
        )

    def held_out(self, train: Tensor, held: Tensor) -> UserSet:
        """Train on these training samples, and be judged by those."""
        return replace(
            self,
            train=Subset(self.train, train.tolist()),
            train_y=self.train_y[train],
            test=Subset(self.train, held.tolist()),
            test_y=self.train_y[held],
        )

    def batches(self, sampler: SelectiveBatchSampler, epoch: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, labels and indices of one pass of the sampler; only what it chose is loaded."""
        # New workers each epoch: kept ones would carry random numbers that no checkpoint holds.
        rng = generator(seed, epoch, 0xDA7A)
        for x, _, index in self._loaded("training", rng, batch_sampler=sampler):
            yield self._moved(x), self.train_y[index].to(self.device), index

    def test_batches(self, size: int = 128) -> Iterator[tuple[Tensor, Tensor]]:
        """Every test sample once, in order."""
        return self._in_order("test", self.test_y, size)

    def plain_batches(self, size: int = 128) -> Iterator[tuple[Tensor, Tensor]]:
        """Every training sample once, in order, as its dataset delivers it."""
        return self._in_order("training", self.train_y, size)

    def example(self) -> Tensor:
        """Inputs of a few training samples, as a network sees them."""
        return self._moved(
            torch.stack([torch.as_tensor(sample(self.train, 0, f"the training set of {self.name}")[0])] * 2)
        )

    def _in_order(self, which: str, y: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for x, _, index in self._loaded(which, generator(0), batch_size=size):
            yield self._moved(x), y[index].to(self.device)

    def _loaded(self, which: str, rng: torch.Generator, **how: Any) -> Iterator[Any]:
        dataset = Indexed(self.train if which == "training" else self.test)
        return loaded(dataset, self.workers, self.device, rng, f"the {which} set of {self.name}", **how)

    def _moved(self, x: Tensor) -> Tensor:
        return x.to(self.device, torch.float32 if x.is_floating_point() else x.dtype, non_blocking=True)


def user_data(name: str) -> ImageSet | UserSet:
    """What the function ``module:function`` returns: an ImageSet, or (train_dataset, test_dataset)."""
    function = imported("data set", name)
    try:
        inspect.signature(function).bind()
    except TypeError:
        raise ValueError(f"{name} takes {inspect.signature(function)}, but it is called without arguments.") from None
    found = function()
    if isinstance(found, ImageSet):
        return found
    if not (isinstance(found, (tuple, list)) and len(found) == 2):
        raise ValueError(
            f"{name} returned {_described(found)}, but a pair (train_dataset, test_dataset) or an ImageSet is needed."
        )
    return labelled(name, *found)


def labelled(name: str, train: Any, test: Any, classes: int | None = None) -> UserSet:
    """The problem of two datasets; a ValueError for labels that no network can learn."""
    train_y, test_y = _labels(train, f"The training set of {name}"), _labels(test, f"The test set of {name}")
    present = torch.unique(train_y)
    needed = 1 + int(max(train_y.max(), test_y.max()))
    if len(present) < 2:
        raise ValueError(
            f"The training set of {name} has a single class, {int(present[0])}: there is nothing to learn."
        )
    if needed > 2 * len(torch.unique(torch.cat([train_y, test_y]))):
        raise ValueError(
            f"The labels of {name} leave gaps: {len(present)} classes, but numbers up to {needed - 1}, and a network "
            "has an output for each. Number the classes 0, 1, 2, ... without gaps."
        )
    if classes is not None and needed > classes:
        raise ValueError(f"The labels of {name} reach {needed - 1}, but it says that it has {classes} classes.")
    if only := sorted(set(test_y.tolist()) - set(present.tolist())):
        log.warning("The test set of %s has classes that its training set lacks: %s.", name, str(only[:5])[1:-1])
    return UserSet(name, train, test, train_y, test_y, needed if classes is None else classes)


def _labels(dataset: Any, what: str) -> Tensor:
    """The labels of all samples: from where datasets keep them, else by asking for each sample once."""
    askable = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, IterableDataset) or not askable:
        raise ValueError(
            f"{what} is {_described(dataset)}. Selection asks for samples by number: give a Dataset with __getitem__ "
            "and __len__."
        )
    if len(dataset) == 0:
        raise ValueError(f"{what} is empty.")
    inside = what[0].lower() + what[1:]
    first = sample(dataset, 0, inside)
    _check_sample(first, what)
    kept = _kept_labels(dataset)
    if kept is None:
        kept = torch.tensor([_label(sample(dataset, i, inside)[1], what) for i in range(len(dataset))])
    y = kept.to(torch.int64)
    if len(y) != len(dataset) or y.dim() != 1 or y.min() < 0 or int(y[0]) != _label(first[1], what):
        raise ValueError(
            f"{what} has {len(dataset)} samples, but its labels do not fit them: one whole number from 0 each, and "
            "where the dataset has a list `targets`, the same there as in the samples."
        )
    return y


def _kept_labels(dataset: Any) -> Tensor | None:
    if isinstance(dataset, Subset):
        inner = _kept_labels(dataset.dataset)
        return None if inner is None else inner[torch.as_tensor(dataset.indices)]
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[1]
    if getattr(dataset, "target_transform", None) is None and hasattr(dataset, "targets"):
        return torch.as_tensor(dataset.targets)
    return None


def _check_sample(sample: Any, what: str) -> None:
    if not (isinstance(sample, (tuple, list)) and len(sample) == 2):
        raise ValueError(f"{what} delivers {_described(sample)} as a sample, but a pair (x, y) is needed.")
    x = sample[0]
    if not isinstance(x, (Tensor, np.ndarray)) or x.ndim == 0:
        raise ValueError(f"{what} delivers {_described(x)} as x, but a tensor is needed. Convert it in the dataset.")
    if torch.as_tensor(x).dtype == torch.uint8:
        raise ValueError(
            f"{what} delivers bytes as x. Convert them to floats in the dataset, or return an ImageSet, which "
            "keeps bytes in memory and normalises each batch."
        )
    _label(sample[1], what)


def _label(y: Any, what: str) -> int:
    value = torch.as_tensor(y) if isinstance(y, (int, np.generic, np.ndarray, Tensor)) else None
    if value is None or value.dim() != 0 or value.is_floating_point():
        raise ValueError(f"{what} delivers {_described(y)} as y, but the number of a class, 0, 1, 2, ..., is needed.")
    return int(value)


def _described(thing: Any) -> str:
    shape = f" of shape {tuple(thing.shape)}" if isinstance(thing, (Tensor, np.ndarray)) else ""
    length = f" of {len(thing)}" if isinstance(thing, (tuple, list)) else ""
    return f"a {type(thing).__name__}{shape}{length}"
