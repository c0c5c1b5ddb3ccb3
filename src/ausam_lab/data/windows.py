"""Forecasting: windows of several series in memory, and squared error as the loss and as the score."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ausam.sampler.batch_sampler import SelectiveBatchSampler
from ausam_lab.config import Config
from ausam_lab.data.labels import refuse_labels, with_sizes
from ausam_lab.data.problem import Task
from ausam_lab.records.score import Score


class Forecasting:
    """The task of forecasting: outputs and targets have shape (n, channels, horizon)."""

    metric = "MSE"

    def losses(self, z: Tensor, y: Tensor, smoothing: float) -> Tensor:  # noqa: ARG002  (windows refuse smoothing)
        """The mean squared error of each window, over its channels and steps."""
        return (z - y).square().flatten(1).mean(1)

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Score:
        """The mean squared error over all windows, channels and steps, with the mean absolute error as a part."""
        squares, sizes, count = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64), 0
        for x, y in batches:
            error = (model(x) - y).double()
            squares, sizes = squares + error.square().sum().cpu(), sizes + error.abs().sum().cpu()
            count += error.numel()
        mse = float(squares) / count
        if not math.isfinite(mse):
            raise ValueError("The forecasts are not finite: training diverged. Use a smaller --lr or --rho.")
        return Score(mse, self.metric, unit="", parts={"MAE": float(sizes) / count}, lower_is_better=True)


HORIZON = 96  # default


@dataclass(frozen=True)
class WindowSet:
    """A forecasting problem: series (channels, steps), cut into training, validation and test steps.

    A validation or test window may begin in the part before, so that it forecasts validation or test steps only.
    """

    task: ClassVar[Task] = Forecasting()
    long_tailed: ClassVar[bool] = False
    wrong: ClassVar[Tensor | None] = None

    name: str
    series: Tensor
    ends: tuple[int, int, int]  # the steps at which training, validation and test end
    look_back: int
    horizon: int = HORIZON
    train_at: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # the first steps of windows
    test_at: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    evaluated_on: str = "test"

    @property
    def classes(self) -> int:
        """Number of steps ahead that a network predicts."""
        return self.horizon

    @property
    def channels(self) -> int:
        """Number of series."""
        return len(self.series)

    @property
    def answer(self) -> tuple[int, ...]:
        """The shape of a network's output for a window: the next steps of each channel."""
        return (self.channels, self.horizon)

    @property
    def train_y(self) -> Tensor:
        """The steps that follow the training windows."""
        return self._cut(self.train_at)[1]

    @property
    def test_y(self) -> Tensor:
        """The steps that follow the test windows."""
        return self._cut(self.test_at)[1]

    def prepare(self, config: Config) -> WindowSet:
        """The data set that a run specifies; a ValueError for settings that forecasting does not support.

        Any ``validation`` above 0 evaluates on the data set's own validation steps.
        """
        refuse_labels(self.name, "numbers to forecast", config)
        for setting, off in (("augment", "none"), ("label_smoothing", 0), ("workers", 0)):
            if (value := getattr(config, setting)) != off:
                flag = f"--{setting.replace('_', '-')} {off}"
                raise ValueError(f"{setting} is {value}, which forecasting {self.name} does not support. Use {flag}.")
        horizon, (trained, validated, tested) = config.horizon or self.horizon, self.ends
        if horizon > (room := min(trained - self.look_back, validated - trained, tested - validated)):
            raise ValueError(f"horizon is {horizon}, but {self.name} allows at most {room} steps ahead.")
        begin, end = (trained, validated) if config.validation else (validated, tested)
        made = replace(
            self,
            series=self.series.to(config.device),
            horizon=horizon,
            train_at=torch.arange(0, trained - self.look_back - horizon + 1, max(1, config.train_stride)),
            test_at=torch.arange(begin - self.look_back, end - self.look_back - horizon + 1),
            evaluated_on="validation" if config.validation else "test",
        )
        return with_sizes(made, config.train_size, config.test_size, config.data_seed or 0)

    def part(self, train: Tensor, test: Tensor) -> WindowSet:
        """The data set with only these windows."""
        return replace(self, train_at=self.train_at[train], test_at=self.test_at[test])

    def training_as_test(self) -> WindowSet:
        """The data set whose test windows are its training windows."""
        return replace(self, test_at=self.train_at)

    def batches(self, sampler: SelectiveBatchSampler, epoch: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:  # noqa: ARG002
        """Windows, the steps that follow, and indices of one pass of the sampler, the only source of randomness."""
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
        """Two training windows, in the form that a network gets."""
        return self._cut(self.train_at[:2])[0]

    def _cut(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """The windows that begin at these positions, and the steps that follow them."""
        every = self.series.unfold(1, self.look_back + self.horizon, 1).transpose(0, 1)  # a view
        window = every[at.to(self.series.device)]
        return window[..., : self.look_back], window[..., self.look_back :]
