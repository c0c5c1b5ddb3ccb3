"""Windows of several series that lie in memory: a sample is a window and what follows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from ausam import SelectiveBatchSampler
from ausam.lab.problems.forecasting import Forecasting
from ausam.lab.problems.labels import refuse_labels, with_sizes
from ausam.lab.problems.problem import Task, Wanted

HORIZON = 96  # where none is asked for


@dataclass(frozen=True)
class WindowSet:
    """A forecasting problem: series (channels, steps), cut into training, validation and test steps.

    A window that is judged begins in the part before, so that its forecasts are of the validation or test steps alone.
    """

    task: ClassVar[Task] = Forecasting()
    long_tailed: ClassVar[bool] = False
    wrong: ClassVar[Tensor | None] = None

    name: str
    series: Tensor
    ends: tuple[int, int, int]  # the steps with which training, validation and test end
    look_back: int
    horizon: int = HORIZON
    train_at: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # the first steps of windows
    test_at: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    judged_by: str = "test"

    @property
    def classes(self) -> int:
        """How many steps ahead a network answers."""
        return self.horizon

    @property
    def channels(self) -> int:
        """How many series there are."""
        return len(self.series)

    @property
    def answer(self) -> tuple[int, ...]:
        """What a network answers for a window: each channel's next steps."""
        return (self.channels, self.horizon)

    @property
    def train_y(self) -> Tensor:
        """What follows the training windows."""
        return self._cut(self.train_at)[1]

    @property
    def test_y(self) -> Tensor:
        """What follows the test windows."""
        return self._cut(self.test_at)[1]

    def prepared(self, wanted: Wanted) -> WindowSet:
        """As a run asks for it; a ValueError for what forecasting does not know.

        Any ``validation`` above 0 judges by the validation steps that the data set itself has set aside.
        """
        refuse_labels(self.name, "numbers to forecast", wanted)
        for setting, off in (("augment", "none"), ("label_smoothing", 0), ("workers", 0)):
            if (value := getattr(wanted, setting)) != off:
                flag = f"--{setting.replace('_', '-')} {off}"
                raise ValueError(f"{setting} is {value}, which forecasting {self.name} does not know. Use {flag}.")
        horizon, (trained, validated, tested) = wanted.horizon or self.horizon, self.ends
        if horizon > (room := min(trained - self.look_back, validated - trained, tested - validated)):
            raise ValueError(f"horizon is {horizon}, but {self.name} has room for at most {room} steps ahead.")
        begin, end = (trained, validated) if wanted.validation else (validated, tested)
        made = replace(
            self,
            series=self.series.to(wanted.device),
            horizon=horizon,
            train_at=torch.arange(0, trained - self.look_back - horizon + 1, max(1, wanted.train_stride)),
            test_at=torch.arange(begin - self.look_back, end - self.look_back - horizon + 1),
            judged_by="validation" if wanted.validation else "test",
        )
        return with_sizes(made, wanted.train_size, wanted.test_size)

    def part(self, train: Tensor, test: Tensor) -> WindowSet:
        """Only these windows."""
        return replace(self, train_at=self.train_at[train], test_at=self.test_at[test])

    def held_out(self, train: Tensor, held: Tensor) -> WindowSet:
        """Train on these training windows, and be judged by those."""
        return replace(self, train_at=self.train_at[train], test_at=self.train_at[held])

    def batches(self, sampler: SelectiveBatchSampler, epoch: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:  # noqa: ARG002
        """Windows, what follows them, and indices of one pass of the sampler; nothing but its choice is random."""
        for chosen in sampler:
            index = torch.tensor(chosen)
            yield *self._cut(self.train_at[index]), index

    def test_batches(self, size: int = 256) -> Iterator[tuple[Tensor, Tensor]]:
        """Every test window once, in order."""
        return (self._cut(at) for at in torch.split(self.test_at, size))

    def plain_batches(self, size: int = 256) -> Iterator[tuple[Tensor, Tensor]]:
        """Every training window once, in order."""
        return (self._cut(at) for at in torch.split(self.train_at, size))

    def example(self) -> Tensor:
        """Two training windows, as a network sees them."""
        return self._cut(self.train_at[:2])[0]

    def _cut(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """The windows that begin at these steps, and what follows them."""
        every = self.series.unfold(1, self.look_back + self.horizon, 1).transpose(0, 1)  # a view
        found = every[at.to(self.series.device)]
        return found[..., : self.look_back], found[..., self.look_back :]
