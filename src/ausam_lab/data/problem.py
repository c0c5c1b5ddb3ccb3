"""The interface of a problem: all that training uses of its data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from ausam.sampler.batch_sampler import SelectiveBatchSampler
from ausam_lab.config import Config
from ausam_lab.data.classification import Classification
from ausam_lab.records.run import Score

Batches = Iterator[tuple[Tensor, Tensor]]


class Task(Protocol):
    """The task of a problem: its losses and its score."""

    @property
    def metric(self) -> str:
        """The name of the score."""

    def losses(self, z: Tensor, y: Tensor, smoothing: float) -> Tensor:
        """The loss of each sample, shape (n,), from the outputs of the network."""

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Score:
        """The score over these batches. The model is in eval mode."""


class HasTargets:
    """What every problem has as fields or properties of its own."""

    name: str
    classes: int  # or other outputs that a network predicts, such as joints
    train_y: Tensor  # the targets of the training samples
    test_y: Tensor


@dataclass(frozen=True, kw_only=True)
class Problem(HasTargets, ABC):
    """Data to train on, data to evaluate on, and their task.

    A subclass is a frozen dataclass. Fields whose names begin with ``train`` hold the training samples. Those that
    begin with ``test`` hold the test samples in the same way.
    """

    names: tuple[str, ...] = ()  # of the classes, if they have any
    wrong: Tensor | None = None  # which training labels were made wrong
    kept: Tensor | None = None  # the indices of the training samples that are left; None: all
    evaluated_on: str = "test"  # or "validation": held-out training samples
    long_tailed: bool = False  # whether the training data was made long-tailed

    @property
    def task(self) -> Task:
        """The task, which defines the losses and the score."""
        return Classification(self.classes if self.long_tailed else 0)

    @property
    @abstractmethod
    def channels(self) -> int:
        """The first dimension of a sample: channels of an image, length of a vector."""

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of a network's output for a sample."""
        return (self.classes,)

    @property
    def origin(self) -> Tensor:
        """The index of each training sample in the data set as it was loaded, before any was left out."""
        return torch.arange(len(self.train_y)) if self.kept is None else self.kept

    def changed(self, **settings: Any) -> Self:
        """The problem with other values of these fields."""
        return replace(self, **settings)

    def part(self, train: Tensor, test: Tensor | None = None) -> Self:
        """The problem with only these samples. All test samples if none are given."""
        taken: dict[str, Any] = {"kept": self.origin[train]}
        for field in fields(self):
            which = train if field.name.startswith("train") else test if field.name.startswith("test") else None
            if which is not None:
                taken[field.name] = _rows(getattr(self, field.name), which)
        return self.changed(**taken)

    def training_as_test(self) -> Self:
        """The problem whose test samples are its training samples."""
        names = [field.name for field in fields(self) if field.name.startswith("test")]
        return self.changed(**{name: getattr(self, name.replace("test", "train")) for name in names})

    @abstractmethod
    def prepare(self, config: Config) -> Self:
        """The data as a run specifies it. A ValueError for settings that this kind of data does not support."""

    @abstractmethod
    def batches(self, sampler: SelectiveBatchSampler, epoch: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, targets and indices of one pass of the sampler. Randomness depends on the arguments only."""

    @abstractmethod
    def in_order(self, which: str, size: int = 125) -> Batches:
        """Every sample of "train" or "test" once, in order, not augmented."""

    @abstractmethod
    def example(self) -> Tensor:
        """The inputs of a few training samples, in the form that a network gets."""


def _rows(samples: Any, which: Tensor) -> Any:
    """These samples of a tensor, of a dataset, or of whatever has a ``part``."""
    if isinstance(samples, Tensor):
        return samples[which]
    return samples.part(which) if hasattr(samples, "part") else Subset(samples, which.tolist())
