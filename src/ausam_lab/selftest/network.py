"""The small network and the batch that every check uses."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from ausam import Method, SharpnessAware
from ausam.common.random import generator

SAMPLES, FEATURES, CLASSES = 64, 12, 4


def network(device: str = "cpu", dtype: torch.dtype = torch.float32) -> nn.Module:
    """The same weights on every device: they are drawn on the CPU in float64."""
    model = nn.Sequential(
        nn.Linear(FEATURES, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, CLASSES)
    ).to(torch.float64)
    rng = generator(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.4 * torch.randn(p.shape, generator=rng, dtype=torch.float64))
    return model.to(device, dtype)


def data(device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Samples and labels, the same on every device."""
    rng = generator(2)
    x = torch.randn(SAMPLES, FEATURES, generator=rng, dtype=torch.float64)
    y = torch.randint(CLASSES, (SAMPLES,), generator=rng)
    return x.to(device, dtype), y.to(device)


class Training:
    """A network with its optimizer and its loss function."""

    def __init__(self, model: nn.Module, method: Method) -> None:
        self.model = model
        self.opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), method, model)
        self.x, self.y = data(str(next(model.parameters()).device), next(model.parameters()).dtype)

    def losses(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Per-sample cross-entropy, and the outputs."""
        z = self.model(x)
        return F.cross_entropy(z, y, reduction="none"), z

    def step(self, batch: int) -> None:
        """One step on a quarter of the samples."""
        index = torch.arange(SAMPLES // 4) + batch % 4 * (SAMPLES // 4)
        here = index.to(self.x.device)
        self.opt.backward(self.losses, self.x[here], self.y[here], index=index)
        self.opt.step()
        self.opt.zero_grad()

    def state(self) -> list[Tensor]:
        """Copies of all parameters and buffers, on the CPU in float64."""
        return [t.detach().cpu().to(torch.float64).clone() for t in self.model.state_dict().values()]


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    """The largest difference between two states, relative to the size of each tensor."""
    return max(float((s - t).norm() / (1e-12 + t.norm())) for s, t in zip(a, b, strict=True))
