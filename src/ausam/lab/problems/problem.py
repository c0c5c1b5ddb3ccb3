"""What a problem is: the one interface between the data of a run and its training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self

from torch import Tensor, nn

from ausam import SelectiveBatchSampler
from ausam.settings import Finite, check

VALIDATION = "validation "  # how the name of a score begins that was measured on training samples held out


def measured_on(name: str) -> str:
    """The name of a score with the data it was measured on: test accuracy, validation accuracy."""
    return name if name.startswith(VALIDATION) else f"test {name}"


def decimals(unit: str) -> int:
    """Decimals with which a score is written: two of a percentage, four of an error such as 0.3857."""
    return 2 if unit == "%" else 4


@dataclass(frozen=True)
class Score:
    """What a network is judged by: a figure with its name and unit, and further figures that explain it, if any."""

    value: Finite
    name: str = "accuracy"
    unit: str = "%"  # empty for a plain number
    parts: dict[str, float] = field(default_factory=dict)
    lower_is_better: bool = False

    def __post_init__(self) -> None:
        check(self)

    def __str__(self) -> str:
        return f"{self.name} {self.value:.{decimals(self.unit)}f} {self.unit}".rstrip()


class Task(Protocol):
    """What a network is trained for. Every problem has one."""

    metric: str  # the name of the score

    def losses(self, z: Tensor, y: Tensor, smoothing: float) -> Tensor:
        """The loss of every sample, shape (n,), from what the network answers."""

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Score:
        """The score over these batches. The model is in eval mode."""


@dataclass(frozen=True)
class Wanted:
    """What a run asks of its data: which part of it, with how many wrong labels, shown how, and where."""

    label_noise: float = 0.0
    imbalance: float = 0.0
    validation: float = 0.0
    horizon: int = 0
    train_stride: int = 0
    train_size: int = 0
    test_size: int = 0
    augment: str = "none"
    label_smoothing: float = 0.0
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
        """How many classes, joints or steps ahead a network answers."""

    @property
    def channels(self) -> int:
        """The first dimension of a sample: the planes of an image, the length of a vector, the series of a window."""

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

    @property
    def judged_by(self) -> str:
        """What the test samples are: "test", or "validation" for training samples that were held out."""

    @property
    def long_tailed(self) -> bool:
        """Whether the training samples were made rarer from class to class."""

    def part(self, train: Tensor, test: Tensor) -> Self:
        """Only these samples."""

    def held_out(self, train: Tensor, held: Tensor) -> Self:
        """Train on these training samples, and be judged by those."""

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
