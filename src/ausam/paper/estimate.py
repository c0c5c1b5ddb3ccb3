"""A rough estimate of the time that a table will take, from a few steps of each network on random samples."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor, nn

from ausam.lab.config import Config
from ausam.lab.experiments.cells import Cell
from ausam.lab.networks.build import build
from ausam.lab.networks.memory_format import to_memory_format, with_format
from ausam.lab.problems.catalogue import entry, training_samples
from ausam.lab.registry.from_config import method_and_policy
from ausam.lab.report.table import text_table
from ausam.lab.training import run_folder
from ausam.paper.quantisation import quantize

ENOUGH = 0.3  # seconds: after a measurement of this length, a larger batch would show nothing new


def sample_seconds(config: Config) -> float:
    """Seconds per sample for forward and backward, in the largest batch that can be measured quickly."""
    shape = entry(config.data)
    model = build(config.model, config.horizon or shape.classes, shape.image[0]).to(config.device)
    if config.quantize:
        model = quantize(model, config.quantize)
    model = with_format(model, config.memory_format)
    size = config.batch_size if config.device.startswith("cuda") else min(4, config.batch_size)
    while True:
        x = to_memory_format(torch.randn(size, *shape.image, device=config.device), config.memory_format)
        spent = min(_step_seconds(model, x) for _ in range(2))
        if spent > ENOUGH or size >= config.batch_size:
            return spent / size
        size = min(4 * size, config.batch_size)


def _step_seconds(model: nn.Module, x: Tensor) -> float:
    start = time.perf_counter()
    torch.autograd.backward(model(x).square().mean())  # the cost of any loss is negligible
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter() - start


def cell_seconds(config: Config, sample: float, done: int = 0) -> float:
    """Seconds for the remaining epochs: forward is a third of a sample's time, backward two; plus the test images."""
    train, test = training_samples(config), config.test_size or entry(config.data).test
    method, policy = method_and_policy(config, steps=config.epochs * -(-train // config.batch_size))
    forward, backward = method.passes
    epoch = sample * (train * policy.kept * (forward + 2 * backward) + test) / 3
    return (config.epochs - done) * epoch


def plan(cells: list[Cell], out: Path) -> str:
    """The cells, their progress, and the remaining time."""
    left: list[tuple[Cell, str, float]] = []
    measured: dict[tuple[str, int], float] = {}
    for cell in cells:
        place, epochs = cell.folder(out), cell.config.epochs
        if (place / "result.json").exists():
            left.append((cell, "done", 0.0))
            continue
        kind = (cell.block, cell.config.quantize)
        if kind not in measured:
            measured[kind] = sample_seconds(cell.config)
        done = len(run_folder.epochs(place))
        state = f"epoch {done} of {epochs}" if done else f"{epochs} epochs to do"
        left.append((cell, state, cell_seconds(cell.config, measured[kind], done)))
    rows = [[c.id, state, duration(s)] for c, state, s in left]
    total = f"{len(cells)} cells, about {duration(sum(s for _, _, s in left))} in one process"
    return "\n".join(
        [
            text_table(["Cell", "State", "Left"], rows, left=(0, 1)),
            "",
            f"{total}: estimated from a few steps on random images, not counting loading.",
        ]
    )


def duration(seconds: float) -> str:
    """A duration in a suitable unit."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
