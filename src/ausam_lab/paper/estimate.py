"""What a table still takes: cells, epochs, samples, and about how much time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ausam_lab.config import Config
from ausam_lab.data.catalogue import entry
from ausam_lab.experiments.cells import Cell
from ausam_lab.names.from_config import method_and_policy
from ausam_lab.networks.build import build
from ausam_lab.paper.quantisation import quantize
from ausam_lab.report.table import Table, to_text
from ausam_lab.report.text import duration, wrapped
from ausam_lab.training import run_folder

BATCHES, STEPS, ENOUGH = (8, 32, 128), 3, 0.2  # samples of a step, steps, and seconds that a step should take


def sample_seconds(config: Config) -> float:
    """Seconds of one sample's forward and backward through the network of a run, from steps on random samples.

    On a CPU it is the CPU time of one thread, which is nearly the same whatever else the machine does. The fastest step
    counts. A small network gets larger batches, because a step on a few samples would time overhead.
    """
    about = entry(config.data)
    model = build(config.model, about.num_outputs, about.image[0]).to(config.device)
    if config.quantize:
        model = quantize(model, config.quantize)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for batch in BATCHES:
            x = torch.randn(batch, *about.image, device=config.device)
            seconds = min(_step(model, x) for _ in range(STEPS))
            if seconds > ENOUGH:
                break
    finally:
        torch.set_num_threads(threads)
    return seconds / batch


def _step(model: nn.Module, x: Tensor) -> float:
    clock = time.perf_counter if x.is_cuda else time.process_time
    start = clock()
    torch.autograd.backward(model(x).square().mean())
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return clock() - start


def samples_of(config: Config, epochs: int) -> float:
    """Samples through forward and backward in so many epochs. Forward is a third of the work, as for test samples."""
    about = entry(config.data)
    train, test = config.train_size or about.train, config.test_size or about.test
    method, policy = method_and_policy(config, steps=config.epochs * -(-train // config.batch_size))
    forward, backward = method.passes
    return epochs * (train * policy.kept * (forward + 2 * backward) + test) / 3


def plan(cells: list[Cell], out: Path) -> str:
    """The total, and what is left of each block."""
    speed: dict[tuple[Any, ...], float] = {}  # of a network on images of a size, in so many bits
    left = {cell.block: (0, 0, 0.0, 0.0) for cell in cells}  # cells, epochs, samples and seconds
    for cell in cells:
        config, done = cell.config, len(run_folder.epochs(cell.folder(out)))
        if (epochs := config.epochs - done) > 0:
            network = config.model, entry(config.data).image, config.quantize
            if network not in speed:
                speed[network] = sample_seconds(config)
            samples, (a, b, c, d) = samples_of(config, epochs), left[cell.block]
            left[cell.block] = a + 1, b + epochs, c + samples, d + samples * speed[network]
    lines = [(name, str(a), str(b), f"{c:,.0f}", duration(d)) for name, (a, b, c, d) in left.items()]
    total = duration(sum(seconds for *_, seconds in left.values()))
    head = f"{sum(count for count, *_ in left.values())} of {len(cells)} cells are left: about {total} in one process"
    table = to_text(Table.of(("Block", "Cells", "Epochs", "Samples", "Time"), lines))
    note = wrapped(
        f"Time is from steps on random samples, on {cells[0].config.device}. On a CPU it is that of one thread."
    )
    return f"{head}.\n\n{table}\n\n{note}"
