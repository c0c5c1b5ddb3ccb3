"""What a table still takes: cells, epochs, samples, and about how much time."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from ausam_lab.config import Config
from ausam_lab.data.catalogue import entry
from ausam_lab.experiments.cells import Cell
from ausam_lab.names.from_config import method_and_policy
from ausam_lab.networks.build import build
from ausam_lab.paper.quantisation import quantize
from ausam_lab.report.table import text_table
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
    clock = time.process_time if config.device == "cpu" else time.perf_counter
    threads, seconds = torch.get_num_threads(), 0.0
    torch.set_num_threads(1)
    try:
        for batch in BATCHES:
            x = torch.randn(batch, *about.image, device=config.device)
            spent = []
            for _ in range(STEPS):
                start = clock()
                torch.autograd.backward(model(x).square().mean())
                if x.is_cuda:
                    torch.cuda.synchronize(x.device)
                spent.append(clock() - start)
            seconds = min(spent)
            if seconds > ENOUGH:
                break
    finally:
        torch.set_num_threads(threads)
    return seconds / batch


def samples_of(config: Config, epochs: int) -> float:
    """Samples through forward and backward in so many epochs. Forward is a third of the work, as for test samples."""
    about = entry(config.data)
    train, test = config.train_size or about.train, config.test_size or about.test
    method, policy = method_and_policy(config, steps=config.epochs * -(-train // config.batch_size))
    forward, backward = method.passes
    return epochs * (train * policy.kept * (forward + 2 * backward) + test) / 3


def plan(cells: list[Cell], out: Path) -> str:
    """The total first, then each block, and the estimate of each network."""
    speed: dict[tuple[str, str, int], float] = {}  # of a network on images of a size, in so many bits
    lines, count, total = [], 0, 0.0
    for block in dict.fromkeys(cell.block for cell in cells):
        left = [(c.config, c.config.epochs - len(run_folder.epochs(c.folder(out)))) for c in cells if c.block == block]
        left = [(config, epochs) for config, epochs in left if epochs > 0]
        samples = seconds = 0.0
        for config, epochs in left:
            network = config.model, "x".join(map(str, entry(config.data).image)), config.quantize
            if network not in speed:
                speed[network] = sample_seconds(config)
            samples += (of_cell := samples_of(config, epochs))
            seconds += of_cell * speed[network]
        every = str(sum(epochs for _, epochs in left))
        lines.append((block, str(len(left)), every, f"{samples:,.0f}", duration(seconds)))
        count, total = count + len(left), total + seconds
    where = cells[0].config.device
    head = f"{count} of {len(cells)} cells are left: about {duration(total)} in one process on {where}."
    table = text_table(("Block", "Cells", "Epochs", "Samples", "Time"), lines)
    clock = "CPU time of one thread" if where == "cpu" else "time"
    of_each = [
        f"{model}{f' in {bits} bits' if bits else ''} on {image}: {1000 * seconds:.3g} ms"
        for (model, image, bits), seconds in speed.items()
    ]
    conditions = wrapped(
        f"From steps on {BATCHES[0]} to {BATCHES[-1]} random samples: {clock} for a sample forward and backward."
    )
    return "\n".join([head, "", table, "", conditions, *of_each])
