"""SAMformer (Ilbert et al. 2024): one layer of attention across the channels of a window, and a linear forecast."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

EPS = 1e-5


class SAMformer(nn.Module):
    """Map windows (n, channels, look_back) to forecasts (n, channels, horizon).

    With u the window without its level and scale (RevIN), and the channels as tokens:

        h = u + softmax(Q K' / sqrt(width)) V,    Q, K, V = linear maps of u;    forecast = RevIN^-1(linear map of h)

    Args:
        horizon: number of steps ahead, >= 1.
        channels: number of series, >= 1.
        look_back: number of past steps in a window; also the width of V.
        width: width of Q and K.
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
