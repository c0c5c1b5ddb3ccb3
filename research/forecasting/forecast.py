"""Forecasting with SAMformer (Ilbert et al. 2024): on ETTh1 SAM beats Adam, also on half of the samples.

    python research/forecasting/forecast.py ETTh1.csv --seeds 5
    python research/forecasting/forecast.py              # series that are drawn here: a minute
    python research/forecasting/forecast.py --smoke      # seconds

ETT (Zhou et al. 2021) holds two years of seven series of an electricity transformer: github.com/zhouhaoyi/ETDataset. A
sample is a window of 512 hours, the network forecasts the next 96, and the score is the mean squared error. The splits
are the official ones (12, 4 and 4 months of 30 days), and the settings SAMformer's, but 20 epochs and every second
window. README.md beside this file keeps what was measured.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ausam import SAM, AUSampling, Full, Indexed, Plain, Random, SelectiveBatchSampler, SharpnessAware

EPS = 1e-5
MONTH = 30 * 24  # hours
RHO = 0.5
ROWS = {
    "Adam": (Plain(), Full()),
    "SAM": (SAM(rho=RHO), Full()),
    "SAM on a random half": (SAM(rho=RHO), Random(alpha=0.5)),
    "AUSAM-0.5": (SAM(rho=RHO), AUSampling(alpha=0.5)),
}


class SAMformer(nn.Module):
    """Map windows (n, channels, look_back) to forecasts (n, channels, horizon).

    With u the window without its level and scale (RevIN), and the channels as tokens:

        h = u + softmax(Q K' / sqrt(width)) V,    Q, K, V = linear maps of u;    forecast = RevIN^-1(linear map of h)
    """

    def __init__(self, horizon: int, channels: int, look_back: int = 512, width: int = 16) -> None:
        super().__init__()
        self.queries = nn.Linear(look_back, width)
        self.keys = nn.Linear(look_back, width)
        self.values = nn.Linear(look_back, look_back)
        self.forecast = nn.Linear(look_back, horizon)
        # RevIN (Kim et al. 2022): each channel's own scale and shift after its window is standardised
        self.scale = nn.Parameter(torch.ones(channels, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """The forecast, in the units of the window."""
        mean = x.mean(-1, keepdim=True).detach()
        std = (x.var(-1, correction=0, keepdim=True) + EPS).sqrt().detach()
        u = (x - mean) / std * self.scale + self.shift
        q, k, v = self.queries(u), self.keys(u), self.values(u)
        h = u + (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v
        z: Tensor = (self.forecast(h) - self.shift) / (self.scale + EPS**2) * std + mean
        return z


def windows(series: Tensor, look_back: int, horizon: int, stride: int = 1) -> TensorDataset:
    """Every stride-th window of the series (channels, steps), and the steps that follow it."""
    every = series.unfold(1, look_back + horizon, 1).transpose(0, 1)[::stride]
    return TensorDataset(every[..., :look_back], every[..., look_back:])


def ett(path: Path, look_back: int = 512, horizon: int = 96) -> tuple[TensorDataset, TensorDataset]:
    """Training windows of 12 months and test windows of the last 4; mean 0 and deviation 1 over the first 12."""
    values = np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(1, 8))
    trained, validated, tested = 12 * MONTH, 16 * MONTH, 20 * MONTH
    standard = (values - values[:trained].mean(0)) / values[:trained].std(0)
    series = torch.from_numpy(standard.T.astype(np.float32).copy())
    test = series[:, validated - look_back : tested]  # it forecasts test hours only
    return windows(series[:, :trained], look_back, horizon, stride=2), windows(test, look_back, horizon)


def drawn(steps: int, trained: int, look_back: int, horizon: int) -> tuple[TensorDataset, TensorDataset]:
    """Five series of daily and weekly waves, random walks and noise; the first ``trained`` steps are for training."""
    rng = torch.Generator().manual_seed(0)
    time, channels = torch.arange(float(steps)), 5
    day = torch.sin(2 * torch.pi * (time / 24 + torch.rand(channels, 1, generator=rng)))
    week = torch.sin(2 * torch.pi * (time / 168 + torch.rand(channels, 1, generator=rng)))
    walk = 0.05 * torch.randn(channels, steps, generator=rng).cumsum(1)
    series = day + 0.7 * week + walk + 0.4 * torch.randn(channels, steps, generator=rng)
    return windows(series[:, :trained], look_back, horizon), windows(series[:, trained:], look_back, horizon)


def train(name: str, data: TensorDataset, test: TensorDataset, epochs: int, batch: int, seed: int) -> tuple[float, int]:
    """The test error of one training, and the samples it cost."""
    method, policy = ROWS[name]
    x, y = test.tensors
    torch.manual_seed(seed)
    model = SAMformer(y.shape[2], y.shape[1], x.shape[2])
    indexed = Indexed(data)
    sampler = SelectiveBatchSampler(indexed, batch_size=batch, policy=policy, epochs=epochs, seed=seed)
    base = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
    opt = SharpnessAware(base, method, model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(base, epochs)

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return (model(x) - y).square().flatten(1).mean(1)  # one loss per window, not their mean

    for _ in range(epochs):
        for x, y, index in DataLoader(indexed, batch_sampler=sampler):
            sampler.update(opt.backward(losses, x, y, index=index))
            opt.step()
            opt.zero_grad()
        schedule.step()
    with torch.no_grad():
        errors = [losses(x, y) for x, y in DataLoader(test, 256)]
    return float(torch.cat(errors).mean()), opt.samples_forward


def main() -> None:
    """Train every row with every seed and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", nargs="?", type=Path, help="ETTh1.csv or ETTh2.csv; without it the series are drawn")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.smoke:
        (data, test), epochs, batch = drawn(200, 80, look_back=24, horizon=6), 2, 16
    elif arguments.csv:
        (data, test), epochs, batch = ett(arguments.csv), 20, 256
    else:
        (data, test), epochs, batch = drawn(1400, 300, look_back=96, horizon=24), 60, 32
    print(f"{len(data)} windows to learn from, {len(test)} later ones to test on; {epochs} epochs")
    print(f"{'':24}{'test MSE':>10}{'std':>10}{'cost':>10}")
    for name in ROWS:
        runs = [train(name, data, test, epochs, batch, seed) for seed in range(arguments.seeds)]
        errors = torch.tensor([error for error, _ in runs])
        spread = float(errors.std()) if len(errors) > 1 else math.nan
        print(f"{name:24}{float(errors.mean()):10.4f}{spread:10.4f}{runs[0][1] / (epochs * len(data)):10.2f}")


if __name__ == "__main__":
    main()
