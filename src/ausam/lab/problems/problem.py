"""What a problem is: the one interface between the data of a run and its training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self

from torch import Tensor, nn

from ausam import SelectiveBatchSampler
from ausam.settings import Finite, check


@dataclass(frozen=True)
class Score:
    """What a network is judged by: a figure with its name and unit, and the figures it is the mean of, if any."""

    value: Finite
    name: str = "accuracy"
    unit: str = "%"
    parts: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} {self.unit}"


class Task(Protocol):
    """What a network is trained for. Every problem has one."""

    metric: str  # the name of the score, which is in percent

    def losses(self, z: Tensor, y: Tensor, smoothing: float) -> Tensor:
        """The loss of every sample, shape (n,), from what the network answers."""

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Score:
        """The score over these batches. The model is in eval mode."""


@dataclass(frozen=True)
class Wanted:
    """What a run asks of its data: how much of it, with how many wrong labels, shown how, and where."""

    label_noise: float = 0.0
    train_size: int = 0
    test_size: int = 0
    augment: str = "none"
    workers: int = 0
    device: str = "cpu"


class Problem(Protocol):
    """Data to train on and data to be judged by, with their task."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def task(self) -> Task:
        """The losses and the score."""

    @property
    def classes(self) -> int:
        """How many classes, or joints, a network tells apart."""

    @property
    def channels(self) -> int:
        """The first dimension of a sample: the planes of an image, the length of a vector."""

    @property
    def answer(self) -> tuple[int, ...]:
        """The shape of what a network answers for a sample."""

    @property
    def train_y(self) -> Tensor:
        """The targets of the training samples."""

    @property
    def test_y(self) -> Tensor:
        """The targets of the test samples."""

    @property
    def wrong(self) -> Tensor | None:
        """Which training labels were made wrong."""

    def part(self, train: Tensor, test: Tensor) -> Self:
        """Only these samples."""

    def prepared(self, wanted: Wanted) -> Self:
        """The same data as a run asks for it; a ValueError for what this kind of data cannot do."""

    def batches(self, sampler: SelectiveBatchSampler, epoch: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, targets and indices of one pass of the sampler; all that is random is a function of the arguments."""

    def test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every test sample once, in order."""

    def plain_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every training sample once, in order, not augmented."""

    def example(self) -> Tensor:
        """Inputs of a few training samples, as a network sees them."""
