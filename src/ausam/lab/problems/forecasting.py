"""Forecasting of several series at once: squared error as the loss and as the score, where lower is better."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ausam.lab.records.score import Score


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
