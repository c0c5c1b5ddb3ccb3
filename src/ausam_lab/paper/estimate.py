"""About how much time, disk and memory a table takes, from a few steps of each network on random samples."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ausam_lab.config import Config
from ausam_lab.data.catalogue import entry, training_samples
from ausam_lab.experiments.cells import Cell
from ausam_lab.networks.build import build
from ausam_lab.networks.memory_format import to_memory_format, with_format
from ausam_lab.paper.quantisation import quantize
from ausam_lab.registry.from_config import method_and_policy
from ausam_lab.report.table import text_table
from ausam_lab.report.text import duration
from ausam_lab.training import run_folder
from ausam_lab.training.checkpoint import KEEP

BYTES = 4  # of a parameter
ENOUGH = 0.3  # seconds: after a measurement of this length, a larger batch would show nothing new


@dataclass(frozen=True)
class Cost:
    """What a network costs.

    Arguments:
        seconds: forward and backward of one sample, in the largest batch that can be measured quickly.
        parameters: their number.
        activations: bytes that one sample keeps for its backward.
    """

    seconds: float
    parameters: int
    activations: float


@dataclass(frozen=True)
class Left:
    """What remains of a cell, and what it takes."""

    cell: Cell
    state: str
    seconds: float
    disk: float  # bytes when it has finished
    while_training: float  # bytes
    memory: float  # bytes


def network_cost(config: Config) -> Cost:
    """What the network of a run costs."""
    shape = entry(config.data)
    model = build(config.model, shape.num_outputs, shape.image[0]).to(config.device)
    if config.quantize:
        model = quantize(model, config.quantize)
    model = with_format(model, config.memory_format)
    parameters = sum(p.numel() for p in model.parameters())
    size = config.batch_size if config.device.startswith("cuda") else min(4, config.batch_size)
    x = to_memory_format(torch.randn(size, *shape.image, device=config.device), config.memory_format)
    activations = _saved_bytes(model, x) / size
    while True:
        x = to_memory_format(torch.randn(size, *shape.image, device=config.device), config.memory_format)
        spent = min(_step_seconds(model, x) for _ in range(2))
        if spent > ENOUGH or size >= config.batch_size:
            return Cost(spent / size, parameters, activations)
        size = min(4 * size, config.batch_size)


def _saved_bytes(model: nn.Module, x: Tensor) -> int:
    """Bytes that autograd keeps between forward and backward, without the parameters."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}

    def note(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        outputs = model(x)
    del outputs
    return sum(size for address, size in sizes.items() if address not in own)


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


def disk_bytes(config: Config, parameters: int) -> float:
    """Bytes of a run while it trains: two checkpoints, of weights and the base optimizer's state, and all snapshots."""
    return BYTES * parameters * KEEP * (1 + _state(config)) + snapshot_bytes(config, parameters)


def kept_bytes(config: Config, parameters: int) -> float:
    """Bytes of a run when it has finished."""
    if config.keep == "all":
        return disk_bytes(config, parameters)
    return BYTES * parameters * (config.keep == "weights") + snapshot_bytes(config, parameters)


def snapshot_bytes(config: Config, parameters: int) -> float:
    """Bytes of the weights of every N-th epoch."""
    return BYTES * parameters * (config.epochs // config.every if config.every else 0)


def memory_bytes(config: Config, cost: Cost) -> float:
    """Bytes of a step: weights, gradients, the base optimizer's state, SAM's saved copy, and a batch's activations."""
    return BYTES * cost.parameters * (3 + _state(config)) + config.batch_size * cost.activations


def _state(config: Config) -> int:
    """Copies of the weights that the base optimizer keeps."""
    return 2 if config.base != "sgd" else int(config.momentum > 0)


def left_to_do(cells: list[Cell], out: Path) -> list[Left]:
    """What remains of each cell."""
    costs: dict[tuple[str, int], Cost] = {}
    left = []
    for cell in cells:
        folder, epochs = cell.folder(out), cell.config.epochs
        kind = (cell.block, cell.config.quantize)
        if kind not in costs:
            costs[kind] = network_cost(cell.config)
        done = epochs if (folder / "result.json").exists() else len(run_folder.epochs(folder))
        state = "done" if done >= epochs else f"epoch {done} of {epochs}" if done else f"{epochs} epochs to do"
        seconds = cell_seconds(cell.config, costs[kind].seconds, min(done, epochs))
        kept, training = (of(cell.config, costs[kind].parameters) for of in (kept_bytes, disk_bytes))
        left.append(Left(cell, state, seconds, kept, training, memory_bytes(cell.config, costs[kind])))
    return left


def plan(left: list[Left], *, every_cell: bool = False) -> str:
    """The total first, then the blocks, or every cell."""
    device = left[0].cell.config.device
    parts = [
        f"{len(left)} cells: {_total(left)}, in one process on {device}.",
        "Estimated from a few steps on random samples. Loading is not counted, nor is the data. Disk: what finished "
        f"runs keep (--keep {left[0].cell.config.keep}), and the last two checkpoints of the one that trains.",
    ]
    if every_cell:
        rows = [[one.cell.id, one.state, duration(one.seconds)] for one in left]
        parts.append(text_table(["Cell", "State", "Left"], rows, left=(0, 1)))
    else:
        rows = []
        for block in dict.fromkeys(one.cell.block for one in left):
            mine = [one for one in left if one.cell.block == block]
            done = sum(one.state == "done" for one in mine)
            rows.append([block, str(len(mine)), str(done), *_sums(mine)])
        parts.append(text_table(["Block", "Cells", "Done", "Left", "Disk", "Memory"], rows))
    return "\n\n".join(parts)


def _total(left: list[Left]) -> str:
    seconds, disk, memory = _sums(left)
    return f"about {seconds}, {disk} of disk and {memory} of memory"


def _sums(left: list[Left]) -> tuple[str, str, str]:
    """The time and the disk of all cells, and the memory of the largest."""
    seconds = sum(one.seconds for one in left)
    disk = sum(one.disk for one in left) + max(one.while_training - one.disk for one in left)
    return duration(seconds), size(disk), size(max(one.memory for one in left))


def size(bytes_: float) -> str:
    """A number of bytes in a suitable unit."""
    return f"{bytes_ / 1e9:.1f} GB" if bytes_ >= 1e9 else f"{bytes_ / 1e6:.1f} MB"
