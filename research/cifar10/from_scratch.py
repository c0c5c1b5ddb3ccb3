"""CIFAR-10 from scratch with a small residual network: does SAM's advantage exist at this size, and does AUSAM keep it?

    python research/cifar10/from_scratch.py gate --data DIR --out research/cifar10    # about 4.5 core hours
    python research/cifar10/from_scratch.py main --data DIR --out research/cifar10    # about 19 core hours
    python research/cifar10/from_scratch.py --smoke                                   # seconds, on random images

DIR holds ``cifar-10-batches-bin``. README.md beside this file says what was fixed before the runs. A finished cell is a
line of ``gate.jsonl`` or ``main.jsonl``; an unfinished one continues from its last epoch (``.parts/``). Start the
command twice to use two cores: a cell that one process has begun is left to it.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import ausam
from ausam import SAM, AUSampling, Full, Plain, Random, SelectiveBatchSampler, SharpnessAware

MEAN, STD = (125.307, 122.950, 113.865), (62.993, 62.089, 66.705)


@dataclass(frozen=True)
class Cell:
    """One training. ``policy`` is "full", "random" (with a whole first epoch) or "ausam" (alpha 0.5, s_max 0.5)."""

    row: str
    seed: int
    lr: float
    rho: float = 0.0
    policy: str = "full"
    batch_size: int = 128
    epochs: int = 15
    validation: int = 5_000  # training images held out and evaluated instead of the test set; 0: the test set
    blocks: tuple[int, ...] = (1, 1, 1, 1)
    width: int = 16


# -- network and data ------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        shortcut = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.shortcut = nn.Sequential(*([] if same else shortcut))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def network(cell: Cell) -> nn.Module:
    """A residual network for 32x32 images; the cell's seed draws its weights."""
    torch.manual_seed(cell.seed)
    layers: list[nn.Module] = [
        nn.Conv2d(3, cell.width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(cell.width),
        nn.ReLU(),
    ]
    inputs = cell.width
    for stage, count in enumerate(cell.blocks):
        outputs = cell.width * 2**stage
        for i in range(count):
            layers.append(Block(inputs, outputs, 2 if stage and i == 0 else 1))
            inputs = outputs
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model.to(memory_format=torch.channels_last)


def read(folder: Path, names: list[str]) -> tuple[Tensor, Tensor]:
    """Normalised images and labels of the official binary files."""
    raw = np.concatenate([np.fromfile(folder / name, np.uint8).reshape(-1, 3073) for name in names])
    x = torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32)).float()
    x = (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    return x, torch.from_numpy(raw[:, 0].astype(np.int64))


def load(data: Path | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test set; random images if no folder is given."""
    if data is None:
        g = torch.Generator().manual_seed(0)
        return (
            torch.randn(300, 3, 32, 32, generator=g),
            torch.randint(10, (300,), generator=g),
            torch.randn(100, 3, 32, 32, generator=g),
            torch.randint(10, (100,), generator=g),
        )
    folder = data / "cifar-10-batches-bin"
    x, y = read(folder, [f"data_batch_{i}.bin" for i in range(1, 6)])
    return x, y, *read(folder, ["test_batch.bin"])


def augment(x: Tensor, g: torch.Generator) -> Tensor:
    """A random crop of the image padded by four pixels, mirrored with probability one half."""
    n = len(x)
    padded = F.pad(x, (4, 4, 4, 4))
    top, left = torch.randint(9, (2, n), generator=g)
    rows = top[:, None] + torch.arange(32)
    columns = left[:, None] + torch.arange(32)
    mirrored = torch.rand(n, generator=g) < 0.5
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    picked = padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)  # channels last in memory


# -- training --------------------------------------------------------------------------------------------------------


def train(cell: Cell, sets: tuple[Tensor, Tensor, Tensor, Tensor], part: Path) -> dict[str, object]:
    """Train one cell, continuing from its part if there is one, and return its record."""
    x, y, test_x, test_y = sets
    if cell.validation:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1_000 + cell.seed))
        held, kept = order[: cell.validation], order[cell.validation :]
        test_x, test_y, x, y = x[held], y[held], x[kept], y[kept]
    model = network(cell)
    policy = {
        "full": Full,
        "random": lambda: Random(0.5, full_epochs=1),
        "ausam": lambda: AUSampling(alpha=0.5, s_max=0.5),
    }[cell.policy]
    sampler = SelectiveBatchSampler(
        TensorDataset(x, y), batch_size=cell.batch_size, policy=policy(), epochs=cell.epochs, seed=cell.seed
    )
    base = torch.optim.SGD(model.parameters(), lr=cell.lr, momentum=0.9, weight_decay=5e-4)
    opt = SharpnessAware(base, SAM(cell.rho) if cell.rho else Plain(), model)
    steps = cell.epochs * -(-len(x) // cell.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    g = torch.Generator().manual_seed(2_000 + cell.seed)
    done, seconds = 0, 0.0
    parts = {"model": model, "opt": opt, "sampler": sampler, "schedule": schedule}
    if part.exists():
        saved = torch.load(part, weights_only=False)  # our own file
        for name, state in saved["parts"].items():
            parts[name].load_state_dict(state)
        g.set_state(saved["random"])
        done, seconds = saved["done"], saved["seconds"]
    for epoch in range(done, cell.epochs):
        began = time.process_time()
        model.train()
        for batch in sampler:
            index = torch.as_tensor(batch)
            images, labels = augment(x[index], g), y[index]
            feedback = opt.backward(
                lambda a, b: F.cross_entropy(model(a), b, reduction="none"), images, labels, index=index
            )
            sampler.update(feedback)
            opt.step()
            opt.zero_grad()
            schedule.step()
        seconds += time.process_time() - began
        states = {name: thing.state_dict() for name, thing in parts.items()}
        saved = {"parts": states, "random": g.get_state(), "done": epoch + 1, "seconds": seconds}
        torch.save(saved, part.with_suffix(".new"))
        part.with_suffix(".new").replace(part)
    model.eval()
    with torch.no_grad():
        z = torch.cat([model(chunk.to(memory_format=torch.channels_last)) for chunk in test_x.split(500)])
    return {
        **asdict(cell),
        "accuracy": 100 * (z.argmax(1) == test_y).float().mean().item(),
        "nll": F.cross_entropy(z, test_y).item(),
        "samples": [opt.samples_forward, opt.samples_backward],
        "cpu_seconds": round(seconds, 1),
        "environment": {
            "cpu": next(line for line in Path("/proc/cpuinfo").open() if "model name" in line).split(":")[1].strip(),
            "kernel": platform.release(),
            "torch": torch.__version__,
            "ausam": ausam.__version__,
            "threads": torch.get_num_threads(),
        },
    }


def gate_cells(done: list[dict[str, object]]) -> list[Cell]:
    """SGD at three rates; then, as soon as these are known, SAM with three radii at the two best rates."""
    cells = [Cell("sgd", seed, lr) for seed in (0, 1) for lr in (0.05, 0.1, 0.2)]
    sgd = [r for r in done if r["row"] == "sgd"]
    if len(sgd) < len(cells):
        return cells
    mean = {lr: sum(float(str(r["accuracy"])) for r in sgd if r["lr"] == lr) / 2 for lr in (0.05, 0.1, 0.2)}
    best = sorted(mean, key=lambda lr: -mean[lr])[:2]
    return cells + [Cell("sam", seed, lr, rho) for seed in (0, 1) for lr in best for rho in (0.05, 0.1, 0.02)]


def main_cells(lr_sgd: float, lr_sam: float, rho: float) -> list[Cell]:
    """Five rows, eight seeds, all 50,000 images, the test set."""
    same = {"epochs": 40, "validation": 0}
    rows = [
        lambda seed: Cell("sgd", seed, lr_sgd, **same),
        lambda seed: Cell("sgd-half-batch", seed, lr_sgd, batch_size=64, **same),
        lambda seed: Cell("sam", seed, lr_sam, rho, **same),
        lambda seed: Cell("sam-random-half", seed, lr_sam, rho, "random", **same),
        lambda seed: Cell("ausam-0.5", seed, lr_sam, rho, "ausam", **same),
    ]
    return [row(seed) for seed in range(8) for row in rows]


def work(phase: str, options: argparse.Namespace) -> None:
    """Train the cells that nobody has trained or begun."""
    out: Path = options.out
    results, parts = out / f"{phase}.jsonl", out / ".parts"
    parts.mkdir(parents=True, exist_ok=True)
    sets = load(options.data)
    while True:
        done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
        cells = gate_cells(done) if phase == "gate" else main_cells(options.lr_sgd, options.lr_sam, options.rho)
        finished = {(r["row"], r["seed"], r["lr"], r["rho"]) for r in done}
        for cell in cells:
            name = f"{phase}-{cell.row}-{cell.seed}-{cell.lr}-{cell.rho}"
            lock = (parts / f"{name}.lock").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if (cell.row, cell.seed, cell.lr, cell.rho) in finished:
                continue
            record = train(cell, sets, parts / f"{name}.pt")
            with results.open("a") as file:
                file.write(json.dumps(record) + "\n")
            break
        else:
            return


def smoke() -> None:
    """One epoch of each kind of cell on random images."""
    with tempfile.TemporaryDirectory() as folder:
        kinds = [("full", 0.0), ("full", 0.05), ("random", 0.05), ("ausam", 0.05)]
        for i, (policy, rho) in enumerate(kinds):
            cell = Cell("smoke", i, 0.1, rho, policy, 64, 1, 50, (1, 1), 4)
            assert np.isfinite(float(str(train(cell, load(None), Path(folder) / f"{i}.pt")["nll"])))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", nargs="?", choices=("gate", "main"))
    parser.add_argument("--data", type=Path, help="the folder that holds cifar-10-batches-bin")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--lr-sgd", type=float, default=0.1, help="main: SGD's rate, from the gate")
    parser.add_argument("--lr-sam", type=float, default=0.1, help="main: SAM's rate, from the gate")
    parser.add_argument("--rho", type=float, default=0.05, help="main: SAM's radius, from the gate")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if options.smoke:
        smoke()
    elif options.phase is None or options.data is None:
        parser.error("say gate or main, and --data DIR")
    else:
        work(options.phase, options)


if __name__ == "__main__":
    main()
