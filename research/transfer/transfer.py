"""Transfer learning: heads on frozen features of CIFAR-10, with right and with wrong labels.

    python research/transfer/features.py --data DIR --out FEATURES                 # once, 30 minutes
    python research/transfer/transfer.py tune --features FEATURES                  # about 45 minutes of one core
    python research/transfer/transfer.py run --features FEATURES --rows primary    # about 5 hours of one core
    python research/transfer/transfer.py run --features FEATURES --rows sgd-20 loss --seeds 12   # some rows, or all
    python research/transfer/transfer.py table                                     # means and contrasts
    python research/transfer/transfer.py --smoke                                   # seconds, on random features

README.md beside this file says what was fixed before the runs. A finished cell is a line of ``tuning.jsonl`` or
``results.jsonl``; start a command twice to use two cores: a cell that one process has begun is left to it.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import platform
import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import ausam
from ausam import SAM, AUSampling, Full, Plain, Policy, Random, SelectiveBatchSampler, SharpnessAware

HERE = Path(__file__).parent
NOISES = ("clean", "symmetric-20", "symmetric-40", "pairs-20")
SIZES = (20_000, 50_000)
SEEDS = range(20)


@dataclass(frozen=True)
class Settings:
    """What is tuned. ``rho`` is 0 for SGD."""

    lr: float
    decay: float
    batch_size: int
    epochs: int = 20
    rho: float = 0.0


# -- rows ------------------------------------------------------------------------------------------------------------


class RandomAfterFirst(Random):
    """A random subset after a whole first epoch, as AUSampling has it."""

    full_epochs = 1


class Shuffled(AUSampling):
    """AUSampling's odds, dealt to the samples of a mini-batch at random."""

    def select(self, scores: Any, epoch: int, candidates: Tensor, rng: torch.Generator) -> Any:
        """A weighted draw: each sample has the odds of another one."""
        owners = torch.argsort(torch.rand(candidates.shape, generator=rng), dim=1)
        return super().select(scores, epoch, candidates.gather(1, owners), rng)


class GradientNorm(AUSampling):
    """AUSampling with the norm of each sample's gradient as its score."""

    signal = staticmethod(lambda feedback: feedback.outputs[:, 10])  # type: ignore[assignment]


class LossItself(AUSampling):
    """AUSampling with the loss as its score."""

    signal = staticmethod(lambda feedback: feedback.loss)  # type: ignore[assignment]


# Row: the family whose settings it takes, its method, its policy, and what else it changes.
ROWS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "sgd": ("sgd", "plain", "full", {}),
    "sam": ("sam", "sam", "full", {}),
    "sam-random-first": ("sam-random", "sam", "random-first", {}),
    "ausam": ("ausam", "sam", "ausam-0.5", {}),
    "sgd-20": ("sgd-20", "plain", "full", {}),
    "sam-random": ("sam-random", "sam", "random", {}),
    "ausam-smax-1": ("ausam", "sam", "ausam-1", {}),
    "ausam-lower-rate": ("ausam", "sam", "ausam-0.5", {"lr_divided_by": 1.5}),
    "shuffled": ("ausam", "sam", "shuffled", {}),
    "gradient-norm": ("ausam", "sam", "gradient-norm", {}),
    "loss": ("ausam", "sam", "loss", {}),
    "ascent": ("sam-random", "ascent", "two-thirds", {}),
    "smoothing": ("sgd", "plain", "full", {"smoothing": 0.1}),
    "oracle-sgd": ("sgd", "plain", "full", {"oracle": True}),
    "oracle-sam": ("sam", "sam", "full", {"oracle": True}),
    "trusted": ("sam-random", "sam", "trusted", {}),
}
PRIMARY = ("sgd", "sam", "sam-random-first", "ausam")
POLICIES = {
    "full": lambda _labels: Full(),
    "random": lambda _labels: Random(0.5),
    "random-first": lambda _labels: RandomAfterFirst(0.5),
    "two-thirds": lambda _labels: Random(0.67),
    "ausam-0.5": lambda _labels: AUSampling(0.5, s_max=0.5),
    "ausam-1": lambda _labels: AUSampling(0.5, s_max=1.0),
    "shuffled": lambda _labels: Shuffled(0.5, s_max=0.5),
    "gradient-norm": lambda _labels: GradientNorm(0.5, s_max=0.5),
    "loss": lambda _labels: LossItself(0.5, s_max=0.5),
    "trusted": lambda labels: ausam.Trusted(labels.tolist(), alpha=0.5),
}
FAMILIES = {"sgd": "sgd", "sam": "sam", "sam-random": "sam-random", "ausam": "ausam"}  # a row of each is tuned
DRAWS = 12


def draws(family: str) -> list[Settings]:
    """The settings that are tried: twelve draws from one grid, the same number for every family.

    SGD's draws have 5, 10, 20 and 40 epochs; the others have 20 epochs and a radius instead.
    """
    rng = random.Random(f"transfer {family}")
    radii = (0.1, 0.2, 0.5, 1.0, 2.0)
    found: list[Settings] = []
    while len(found) < DRAWS:
        s = Settings(rng.choice((0.01, 0.02, 0.05, 0.1)), rng.choice((5e-4, 2e-3, 5e-3)), rng.choice((64, 128, 256)))
        s = replace(s, epochs=(5, 10, 20, 40)[len(found) % 4]) if family == "sgd" else replace(s, rho=rng.choice(radii))
        if s not in found:
            found.append(s)
    return found


# -- data ------------------------------------------------------------------------------------------------------------


@dataclass
class Problem:
    """Training features with their given and their true labels, and what the head is evaluated on."""

    x: Tensor
    given: Tensor
    true: Tensor
    test_x: Tensor
    test_y: Tensor


def load(folder: Path | None) -> tuple[Tensor, Tensor]:
    """Features (training images first, 10,000 test images last) and labels; random ones if no folder is given."""
    if folder is None:
        g = torch.Generator().manual_seed(0)
        y = torch.randint(10, (1_500,), generator=g)
        return torch.randn(1_500, 32, generator=g) + F.one_hot(y, 32), y
    x = torch.from_numpy(np.load(folder / "features.npy")).float()
    return x, torch.from_numpy(np.load(folder / "labels.npy"))


def corrupt(y: Tensor, noise: str, g: torch.Generator) -> Tensor:
    """Labels of which a part is wrong: another class at random, or the next class (pairs)."""
    if noise == "clean":
        return y
    kind, percent = noise.split("-")
    wrong = torch.rand(len(y), generator=g) < int(percent) / 100
    by = torch.randint(1, 10, (len(y),), generator=g) if kind == "symmetric" else torch.ones_like(y)
    return torch.where(wrong, (y + by) % 10, y)


def problem(data: tuple[Tensor, Tensor], n: int, noise: str, seed: int, tuning: bool) -> Problem:
    """Draw subset and wrong labels. Tuning evaluates on 5,000 other training images, with as many wrong labels."""
    x, y = data
    tests = 10_000 if len(x) == 60_000 else 500
    total = len(x) - tests
    g = torch.Generator().manual_seed(10_000 + seed)
    order = torch.randperm(total, generator=g)
    given = corrupt(y[:total], noise, g)
    kept = order[: min(n, total)]
    mean, std = x[kept].mean(0), x[kept].std(0).clamp_min(1e-3)
    held = order[n : n + 5_000] if tuning else torch.arange(total, len(x))
    held_y = given[held] if tuning else y[held]
    return Problem((x[kept] - mean) / std, given[kept], y[kept], (x[held] - mean) / std, held_y)


# -- training --------------------------------------------------------------------------------------------------------


class Head(nn.Module):
    """Linear, BatchNorm, ReLU, dropout, linear."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(inputs, 256), nn.BatchNorm1d(256), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        return self.last(F.dropout(F.relu(self.norm(self.first(x))), 0.2, self.training))

    def with_gradient_norms(self, x: Tensor, y: Tensor) -> Tensor:
        """The logits and, in an eleventh column, the norm of each sample's own gradient.

        The statistics of BatchNorm count as constants, and dropout's mask is that of this pass.
        """
        a = self.first(x)
        n = self.norm(a)
        h = F.dropout(F.relu(n), 0.2, self.training)
        z = self.last(h)
        with torch.no_grad():
            d2 = z.softmax(1) - F.one_hot(y, 10)
            dn = (d2 @ self.last.weight) * (h > 0) * (1.25 if self.training else 1.0)
            scale = self.norm.weight / (a.var(0, unbiased=False) + self.norm.eps).sqrt()
            normal = (a - a.mean(0)) / (a.var(0, unbiased=False) + self.norm.eps).sqrt()
            squares = d2.square().sum(1) * (h.square().sum(1) + 1)
            squares += (dn * normal).square().sum(1) + dn.square().sum(1)
            squares += (dn * scale).square().sum(1) * (x.square().sum(1) + 1)
        return torch.cat([z, squares.sqrt()[:, None]], 1)


def train(p: Problem, row: str, s: Settings, seed: int) -> dict[str, Any]:
    """Train one head and evaluate it."""
    _, method, policy, changes = ROWS[row]
    began = time.process_time()
    x, y = p.x, p.given
    if changes.get("oracle"):
        x, y = x[p.given == p.true], y[p.given == p.true]
    torch.manual_seed(seed)
    model = Head(x.shape[1])
    chosen: Policy = POLICIES[policy](y)
    sampler = SelectiveBatchSampler(
        TensorDataset(x, y), batch_size=s.batch_size, policy=chosen, epochs=s.epochs, seed=seed
    )
    lr = s.lr / changes.get("lr_divided_by", 1.0)
    base = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=s.decay)
    estimator = {"plain": Plain(), "sam": SAM(s.rho), "ascent": SAM(s.rho, ascent=0.5)}[method]
    opt = SharpnessAware(base, estimator, model)
    steps = s.epochs * math.ceil(len(x) / s.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    smoothing = changes.get("smoothing", 0.0)

    def losses(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        z = model.with_gradient_norms(a, b) if policy == "gradient-norm" else model(a)
        return F.cross_entropy(z[:, :10], b, reduction="none", label_smoothing=smoothing), z

    for _ in range(s.epochs):
        for batch in sampler:
            index = torch.as_tensor(batch)
            sampler.update(opt.backward(losses, x[index], y[index], index=index))
            opt.step()
            opt.zero_grad()
            schedule.step()
    model.eval()
    with torch.no_grad():
        z = model(p.test_x)
    confidence, predicted = z.softmax(1).max(1)
    right = (predicted == p.test_y).float()
    bins = (confidence * 15).long().clamp_max(14)
    gaps = torch.zeros(15).index_add_(0, bins, right - confidence).abs()
    return {
        "accuracy": 100 * right.mean().item(),
        "nll": F.cross_entropy(z, p.test_y).item(),
        "ece": 100 * gaps.sum().item() / len(z),
        "samples": [opt.samples_forward, opt.samples_backward],
        "cpu_seconds": round(time.process_time() - began, 2),
    }


# -- cells -----------------------------------------------------------------------------------------------------------


def environment() -> dict[str, Any]:
    """Machine, versions and commit."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout
    return {
        "cpu": next(line for line in Path("/proc/cpuinfo").open() if "model name" in line).split(":")[1].strip(),
        "kernel": platform.release(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "commit": commit.strip(),
    }


def read(path: Path) -> list[dict[str, Any]]:
    """The finished cells."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tuned(family: str, noise: str, done: list[dict[str, Any]]) -> Settings:
    """The settings with the best validation accuracy; sgd-20: the best with 20 epochs."""
    epochs = 20 if family == "sgd-20" else None
    cells = [r for r in done if r["family"] == ("sgd" if epochs else family) and r["noise"] == noise]
    cells = [r for r in cells if epochs in (None, r["settings"]["epochs"])]
    if len(cells) < (DRAWS // 4 if epochs else DRAWS):
        raise SystemExit(f"{family} is not tuned for {noise} yet. Run: transfer.py tune")
    return Settings(**max(cells, key=lambda r: r["accuracy"])["settings"])


def cells(
    phase: str, rows: tuple[str, ...], noises: tuple[str, ...], sizes: tuple[int, ...], seeds: range
) -> Iterator[dict[str, Any]]:
    """What a phase has to train, the most wanted first."""
    if phase == "tune":
        for noise in noises:
            for family in FAMILIES:
                for settings in draws(family):
                    yield {"family": family, "noise": noise, "settings": asdict(settings)}
        return
    done = read(HERE / "tuning.jsonl")
    families = {"sgd"} | {ROWS[row][0] for row in rows}
    best = {(family, noise): tuned(family, noise, done) for family in families for noise in noises}
    for n in sizes:
        for seed in seeds:
            for noise in noises:
                for row in rows:
                    if "oracle" in row and noise == "clean":
                        continue
                    settings = best[ROWS[row][0], noise]
                    if row == "sgd-20" and settings == best["sgd", noise]:
                        continue  # the row "sgd" is this one
                    yield {"n": n, "noise": noise, "seed": seed, "row": row, "settings": asdict(settings)}


def work(
    phase: str,
    rows: tuple[str, ...],
    noises: tuple[str, ...],
    sizes: tuple[int, ...],
    seeds: range,
    data: tuple[Tensor, Tensor],
) -> None:
    """Train the cells that nobody has trained or begun."""
    results = HERE / ("tuning.jsonl" if phase == "tune" else "results.jsonl")
    parts = HERE / ".parts"
    parts.mkdir(exist_ok=True)
    finished = {key(r) for r in read(results)}
    here = environment()
    for cell in cells(phase, rows, noises, sizes, seeds):
        if key(cell) in finished:
            continue
        lock = (parts / f"{abs(hash_of(cell)):x}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        if key(cell) in {key(r) for r in read(results)}:
            continue
        tuning = phase == "tune"
        p = problem(data, cell.get("n", 20_000), cell["noise"], cell.get("seed", 1_000), tuning)
        row = FAMILIES[cell["family"]] if tuning else cell["row"]
        made = train(p, row, Settings(**cell["settings"]), cell.get("seed", 1_000))
        with results.open("a") as file:
            file.write(json.dumps(cell | made | {"environment": here}) + "\n")


def key(r: dict[str, Any]) -> str:
    """What identifies a cell."""
    names = ("family", "noise", "n", "seed", "row") if "row" in r else ("family", "noise", "settings")
    return json.dumps([r.get(name) for name in names])


def hash_of(cell: dict[str, Any]) -> int:
    """A number that two processes agree on."""
    return random.Random(key(cell)).getrandbits(60)


# -- table -----------------------------------------------------------------------------------------------------------

CONTRASTS = (
    ("sam-random-first", "sgd"),
    ("ausam", "sam-random-first"),
    ("sam", "sgd"),
    ("ausam", "sgd"),
    ("sgd", "sgd-20"),
    ("sam-random-first", "sgd-20"),
    ("ausam", "sgd-20"),
    ("ausam", "sam"),
    ("ausam", "shuffled"),
    ("gradient-norm", "ausam"),
    ("loss", "ausam"),
    ("smoothing", "sgd"),
    ("ascent", "sam-random-first"),
    ("trusted", "sam-random"),
)


def table() -> None:
    """Print means with standard deviations, then paired differences with 95 % t intervals."""
    from scipy import stats

    done = read(HERE / "results.jsonl")
    for n in SIZES:
        for noise in NOISES:
            found = {
                row: {r["seed"]: r for r in done if (r["n"], r["noise"], r["row"]) == (n, noise, row)} for row in ROWS
            }
            if not any(found.values()):
                continue
            print(f"\n{n} images, {noise}")
            for row, by_seed in found.items():
                if len(by_seed) > 1:
                    a = np.array([r["accuracy"] for r in by_seed.values()])
                    nll = np.mean([r["nll"] for r in by_seed.values()])
                    cost = np.mean([sum(r["samples"]) for r in by_seed.values()])
                    seconds = np.mean([r["cpu_seconds"] for r in by_seed.values()])
                    print(f"  {row:18} {a.mean():6.2f} +- {a.std(ddof=1):.2f}  NLL {nll:.3f}  "
                          f"{cost / (40 * n):.2f} x 20 epochs of SGD, {seconds:.0f} s, {len(a)} seeds")  # fmt: skip
            for one, other in CONTRASTS:
                both = sorted(found[one].keys() & found[other].keys())
                if len(both) > 2:
                    d = np.array([found[one][s]["accuracy"] - found[other][s]["accuracy"] for s in both])
                    half = stats.t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / math.sqrt(len(d))
                    print(f"  {one} - {other}: {d.mean():+.2f} [{d.mean() - half:+.2f}, {d.mean() + half:+.2f}]")


def smoke() -> None:
    """One epoch of each row on random features."""
    data = load(None)
    for row in ROWS:
        made = train(problem(data, 500, "symmetric-20", 0, False), row, Settings(0.05, 5e-4, 64, 2, 0.1), 0)
        assert math.isfinite(made["nll"]), row


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", nargs="?", choices=("tune", "run", "table"))
    parser.add_argument("--features", type=Path, help="the folder that features.py wrote")
    parser.add_argument("--rows", nargs="+", choices=("primary", "all", *ROWS), default=["all"])
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="the first of them alone")
    parser.add_argument("--noise", choices=NOISES, help="one kind of labels; without it, all four")
    parser.add_argument("--size", type=int, choices=SIZES, help="number of images; without it, both")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if options.smoke:
        smoke()
    elif options.phase == "table":
        table()
    elif options.phase is None or options.features is None:
        parser.error("say tune or run, and --features FEATURES")
    else:
        noises = (options.noise,) if options.noise else NOISES
        sizes = (options.size,) if options.size else SIZES
        groups = {"primary": PRIMARY, "all": tuple(ROWS)}
        rows = tuple(row for name in options.rows for row in groups.get(name, (name,)))
        work(options.phase, rows, noises, sizes, SEEDS[: options.seeds], load(options.features))


if __name__ == "__main__":
    main()
