"""A pair of torch datasets as a problem. Only the chosen samples are loaded.

``module:function`` names a function of the user that returns the pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, TensorDataset

from ausam.common.random import generator
from ausam.sampler.batch_sampler import SelectiveBatchSampler
from ausam.sampler.indexed import Indexed
from ausam_lab.config import Config
from ausam_lab.data.labels import arrange
from ausam_lab.data.loading import load_batches, sample
from ausam_lab.data.problem import Batches, Problem
from ausam_lab.names.user_code import imported_function


@dataclass(frozen=True)
class UserSet(Problem):
    """A problem given as two datasets of samples (x, y), which do their own augmentation."""

    name: str
    train: Any
    test: Any
    train_y: Tensor
    test_y: Tensor
    classes: int
    workers: int = 0
    device: str = "cpu"

    @property
    def channels(self) -> int:
        """The first dimension of a sample: channels of an image, length of a vector."""
        return self.example().shape[1]

    def prepare(self, config: Config) -> UserSet:
        """The data set that a run specifies. A ValueError for augmentation, which the datasets do themselves."""
        if config.augment != "none":
            raise ValueError(
                f'augment is "{config.augment}", but {self.name} returns datasets, which do their own augmentation. '
                "Use --augment none."
            )
        return arrange(self, config).changed(workers=config.workers, device=config.device)

    def batches(self, sampler: SelectiveBatchSampler, epoch: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, targets and indices of one pass of the sampler. Only the chosen samples are loaded."""
        # New workers in each epoch: persistent ones would have random states that no checkpoint contains.
        rng = generator(seed, epoch, 0xDA7A)
        for x, _, index in self._loaded("training", rng, batch_sampler=sampler):
            yield self._moved(x), self.train_y[index].to(self.device), index

    def in_order(self, which: str, size: int = 125) -> Batches:
        """Every sample of "train" or "test" once, in order, as its dataset returns it."""
        name, y = ("training", self.train_y) if which == "train" else ("test", self.test_y)
        for x, _, index in self._loaded(name, generator(0), batch_size=size):
            yield self._moved(x), y[index].to(self.device)

    def example(self) -> Tensor:
        """The inputs of a few training samples, in the form that a network gets."""
        x = torch.as_tensor(sample(self.train, 0, f"the training set of {self.name}")[0])
        return self._moved(torch.stack([x, x]))

    def _loaded(self, which: str, rng: torch.Generator, **how: Any) -> Iterator[Any]:
        dataset = Indexed(self.train if which == "training" else self.test)
        return load_batches(dataset, self.workers, self.device, rng, f"the {which} set of {self.name}", **how)

    def _moved(self, x: Tensor) -> Tensor:
        return x.to(self.device, torch.float32 if x.is_floating_point() else x.dtype, non_blocking=True)


def user_data(name: str) -> Problem:
    """The problem from the user's ``module:function``, which returns an ImageSet or (train_dataset, test_dataset)."""
    data = imported_function("data set", name)()
    if isinstance(data, Problem):
        return data
    if not (isinstance(data, (tuple, list)) and len(data) == 2):
        raise ValueError(
            f"{name} returned {described(data)}. Return a pair (train_dataset, test_dataset) or an ImageSet."
        )
    return from_datasets(name, *data)


def from_datasets(name: str, train: Any, test: Any, names: Sequence[str] = ()) -> UserSet:
    """The problem made of two datasets, with the names of its classes if known.

    The datasets must give their samples by index, and a sample must be a pair of an array and the number of a class.
    Anything else raises a ValueError.
    """
    every = {which: targets(of, f"the {which} set of {name}") for of, which in ((train, "training"), (test, "test"))}
    for which, y in every.items():
        if y.dim() != 1 or y.is_floating_point():
            raise ValueError(
                f"the {which} set of {name} has targets of shape {tuple(y.shape[1:])} and type {y.dtype}. Use the "
                "number of a class as y: 0, 1, 2, ..."
            )
    train_y, test_y = (y.long() for y in every.values())
    both = torch.cat([train_y, test_y])
    classes, present = 1 + int(both.max()), len(torch.unique(both))
    if both.min() < 0 or present < 2 or classes > 2 * present:
        raise ValueError(
            f"The labels of {name} go from {int(both.min())} to {int(both.max())}, with {present} different ones. "
            "Number the classes 0, 1, 2, ... without gaps, at least two, because a network has an output for each."
        )
    classes = max(classes, len(names))
    return UserSet(name, train, test, train_y, test_y, classes, names=tuple(map(str, names)))


def targets(dataset: Any, what: str) -> Tensor:
    """The targets of all samples: from the dataset's own list, or by reading each sample once."""
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise ValueError(
            f"{what} is a {type(dataset).__name__}. Selection needs access by index: use a Dataset with __getitem__ "
            "and __len__."
        )
    if len(dataset) == 0:
        raise ValueError(f"{what} is empty. It needs at least one sample.")
    _check_sample(sample(dataset, 0, what), what)
    known = _known_targets(dataset)
    if known is None:
        every = [sample(dataset, i, what)[1] for i in range(len(dataset))]
        try:
            known = torch.stack([torch.as_tensor(y) for y in every])
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"The targets y of {what} are not numbers of one shape: {error}.") from error
    if len(known) != len(dataset):
        raise ValueError(f"{what} has {len(dataset)} samples, but its list of targets has {len(known)}.")
    return known


def _known_targets(dataset: Any) -> Tensor | None:
    if isinstance(dataset, Subset):
        inner = _known_targets(dataset.dataset)
        return None if inner is None else inner[torch.as_tensor(dataset.indices)]
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[1]
    if getattr(dataset, "target_transform", None) is None and hasattr(dataset, "targets"):
        return torch.as_tensor(dataset.targets)
    return None


def _check_sample(pair: Any, what: str) -> None:
    """Raise a ValueError unless the sample is a pair whose x a network can take."""
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        raise ValueError(f"{what} returns {described(pair)} as a sample. Return a pair (x, y).")
    x = pair[0]
    if not isinstance(x, Tensor | np.ndarray) or x.ndim == 0:
        raise ValueError(f"{what} returns {described(x)} as x. Convert it to a tensor in the dataset.")
    if torch.as_tensor(x).dtype == torch.uint8:
        raise ValueError(
            f"{what} returns bytes as x. Convert them to floats in the dataset, or use an ImageSet, which keeps bytes "
            "in memory and normalises each batch."
        )


def described(thing: Any) -> str:
    """A value in words: its type, and its shape or length."""
    if isinstance(thing, Tensor | np.ndarray):
        return f"a {type(thing).__name__} of shape {tuple(thing.shape)}"
    return f"a {type(thing).__name__}" + (f" of {len(thing)}" if isinstance(thing, tuple | list) else "")
