"""What a table still takes: cells, epochs, samples, and about how much time."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from ausam_lab.config import Config
from ausam_lab.data.catalogue import entry, training_samples
from ausam_lab.experiments.cells import Cell
from ausam_lab.names.from_config import method_and_policy
from ausam_lab.networks.build import build
from ausam_lab.paper.quantisation import quantize
from ausam_lab.report.table import text_table
from ausam_lab.report.text import duration
from ausam_lab.training import run_folder

BATCH = 8  # samples of the step that is timed


def sample_seconds(config: Config) -> float:
    """Seconds of one sample's forward and backward through the network of a run, from a step on random samples."""
    about = entry(config.data)
    model = build(config.model, about.num_outputs, about.image[0]).to(config.device)
    if config.quantize:
        model = quantize(model, config.quantize)
    x = torch.randn(BATCH, *about.image, device=config.device)
    spent = []
    for _ in range(2):  # the first warms up
        start = time.perf_counter()
        torch.autograd.backward(model(x).square().mean())
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        spent.append(time.perf_counter() - start)
    return min(spent) / BATCH


def samples_of(config: Config, epochs: int) -> float:
    """Samples through forward and backward in so many epochs; forward is a third of the work, as for test samples."""
    train, test = training_samples(config), config.test_size or entry(config.data).test
    method, policy = method_and_policy(config, steps=config.epochs * -(-train // config.batch_size))
    forward, backward = method.passes
    return epochs * (train * policy.kept * (forward + 2 * backward) + test) / 3


def plan(cells: list[Cell], out: Path) -> str:
    """The total first, then each block."""
    lines, total = [], 0.0
    for block in dict.fromkeys(cell.block for cell in cells):
        left = [(c, c.config.epochs - len(run_folder.epochs(c.folder(out)))) for c in cells if c.block == block]
        left = [(cell, epochs) for cell, epochs in left if epochs > 0]
        samples = [samples_of(cell.config, epochs) for cell, epochs in left]
        # the full-precision and the quantised network of a block differ
        speed = {bits: sample_seconds(c.config) for bits, c in {c.config.quantize: c for c, _ in left}.items()}
        seconds = sum(n * speed[cell.config.quantize] for (cell, _), n in zip(left, samples, strict=True))
        epochs = sum(epochs for _, epochs in left)
        lines.append((block, str(len(left)), str(epochs), f"{sum(samples):,.0f}", duration(seconds)))
        total += seconds
    where = cells[0].config.device
    count = sum(int(line[1]) for line in lines)
    head = f"{count} of {len(cells)} cells are left: about {duration(total)} in one process on {where}."
    table = text_table(("Block", "Cells", "Epochs", "Samples", "Time"), lines)
    return f"{head}\n\n{table}\n\nTimes are estimated from a step of each network on random samples."
