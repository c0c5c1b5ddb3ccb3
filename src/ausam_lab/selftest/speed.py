"""The time of a step of SAM and of AUSAM-0.5 against SGD on a device."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from ausam import SAM, Method, Plain, SharpnessAware
from ausam.common.random import generator
from ausam_lab.experiments.side_by_side import interleaved, median_ratio

BATCH, REPEATS = 128, 10


def step_times(device: str) -> str:
    """One line: the median step of SGD, and those of SAM and AUSAM-0.5 against it."""
    tasks = {"SGD": _task(device, Plain(), BATCH), "SAM": _task(device, SAM(0.05), BATCH)}
    tasks["AUSAM-0.5"] = _task(device, SAM(0.05), BATCH // 2)  # after its first epoch it gets half of each batch
    seconds = interleaved(tasks, REPEATS, warmup=3)
    others = [f"{name} {median_ratio(seconds[name], seconds['SGD']):.2f} x SGD" for name in ("SAM", "AUSAM-0.5")]
    step = 1e3 * statistics.median(seconds["SGD"])
    return f"SGD {step:.1f} ms a step, {', '.join(others)} (three convolutions, batch {BATCH}, 32x32 pixels)"


def _task(device: str, method: Method, batch: int) -> Callable[[], None]:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 16, 10)).to(device)
    x = torch.randn(batch, 3, 32, 32, generator=generator(1)).to(device)
    y = (torch.arange(batch) % 10).to(device)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), method, model)

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    def step() -> None:
        opt.backward(losses, x, y)
        opt.step()
        opt.zero_grad()
        synchronize(device)

    return step


def synchronize(device: str) -> None:
    """Wait until the device has finished; a CPU has."""
    kind = torch.device(device).type
    if kind != "cpu":
        getattr(torch, kind).synchronize()
