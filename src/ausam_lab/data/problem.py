"""The interface of a problem: all that training knows about its data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, Self

from torch import Tensor, nn

from ausam.sampler.batch_sampler import SelectiveBatchSampler
from ausam_lab.config import Config
from ausam_lab.records.run import Score


class Task(Protocol):
    """The task of a problem: its losses and its score."""

    @property
    def metric(self) -> str:
        """The name of the score."""

    def losses(self, z: Tensor, y: Tensor, smoothing: float) -> Tensor:
        """The loss of each sample, shape (n,), from the outputs of the network."""

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Score:
        """The score over these batches. The model is in eval mode."""


class Problem(Protocol):
    """Data to train on, data to evaluate on, and their task."""

    @property
    def name(self) -> str:
        """The name of the problem."""

    @property
    def task(self) -> Task:
        """The task, which defines the losses and the score."""

    @property
    def num_outputs(self) -> int:
        """Number of classes, joints or other outputs that a network predicts."""

    @property
    def channels(self) -> int:
        """The first dimension of a sample: channels of an image, length of a vector."""

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of a network's output for a sample."""

    @property
    def train_y(self) -> Tensor:
        """The targets of the training samples."""

    @property
    def test_y(self) -> Tensor:
        """The targets of the test samples."""

    @property
    def wrong(self) -> Tensor | None:
        """Which training labels were made wrong."""

    @property
    def evaluated_on(self) -> str:
        """The kind of the test samples: "test", or "validation" for held-out training samples."""

    @property
    def long_tailed(self) -> bool:
        """Whether the training data was made long-tailed."""

    def part(self, train: Tensor, test: Tensor) -> Self:
        """The problem with only these samples."""

    def training_as_test(self) -> Self:
        """The problem whose test samples are its training samples."""

    def prepare(self, config: Config) -> Self:
        """The data as a run specifies it; a ValueError for settings that this kind of data does not support."""

    def batches(self, sampler: SelectiveBatchSampler, epoch: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, targets and indices of one pass of the sampler; randomness depends on the arguments only."""

    def test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every test sample once, in order."""

    def plain_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every training sample once, in order, not augmented."""

    def example(self) -> Tensor:
        """The inputs of a few training samples, in the form that a network gets."""
