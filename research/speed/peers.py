"""A whole step of SAM, side by side: ours, davda54's algorithm, pytorch_optimizer with foreach, HeavyBall's SAMWrapper.

    pip install pytorch_optimizer==4.1.0 heavyball==3.2.1
    python research/speed/peers.py | tee research/speed/peers.txt    # about five minutes on a quiet machine
    python research/speed/peers.py --smoke                           # seconds, without the peers that are missing

Each takes two forward-backward passes and a step of SGD with momentum on the same network and batch. "Own cost" is the
time beyond a bare loop of two passes and one step. Ratios are of medians of interleaved turns, on one thread. HeavyBall
perturbs as ASAM does, and runs without torch.compile here.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from side_by_side import conditions, interleaved

from ausam import SAM, SharpnessAware
from ausam.common.random import generator
from ausam_lab.networks.build import build

RHO, LR, MOMENTUM = 0.05, 1e-3, 0.9
Task = Callable[[], object]
Problem = tuple[nn.Module, Tensor, Tensor]


def small() -> Problem:
    """A network of 4,650 weights, where Python dominates."""
    layers = [nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)]
    return nn.Sequential(*layers), torch.randn(32, 32, generator=generator(1)), torch.arange(32) % 10


def large() -> Problem:
    """ResNet-18 on a batch so small that the cost beyond the passes is visible."""
    return build("resnet18", 10, 3, seed=0), torch.randn(2, 3, 16, 16, generator=generator(1)), torch.tensor([0, 1])


def mean_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Forward and backward of the mean of per-sample losses."""
    loss = cross_entropy(model(x), y, reduction="none").mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


def bare(model: nn.Module, x: Tensor, y: Tensor) -> Task:
    """Two passes and one step."""
    base = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)

    def step() -> None:
        for _ in range(2):
            base.zero_grad()
            mean_loss(model, x, y)
        base.step()

    return step


def ours(model: nn.Module, x: Tensor, y: Tensor) -> Task:
    """SharpnessAware."""
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM), SAM(RHO), model)

    def step() -> None:
        opt.zero_grad()
        opt.backward(lambda a, b: cross_entropy(model(a), b, reduction="none"), x, y)
        opt.step()

    return step


def plainly(model: nn.Module, x: Tensor, y: Tensor) -> Task:
    """The algorithm of davda54/sam: a loop over the parameters that copies each, for both halves of the step."""
    base = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    params = list(model.parameters())

    def step() -> None:
        base.zero_grad()
        mean_loss(model, x, y)
        with torch.no_grad():
            grads = [p.grad for p in params if p.grad is not None]
            scale = RHO / (torch.stack([g.norm() for g in grads]).norm() + 1e-12)
            saved = [p.clone() for p in params]
            for p, g in zip(params, grads, strict=True):
                p.add_(g * scale)
        base.zero_grad()
        mean_loss(model, x, y)
        with torch.no_grad():
            for p, old in zip(params, saved, strict=True):
                p.copy_(old)
        base.step()

    return step


def pytorch_optimizer(model: nn.Module, x: Tensor, y: Tensor) -> Task:
    """The SAM of pytorch_optimizer, with its foreach implementation."""
    from pytorch_optimizer import SAM as Peer  # noqa: N811

    opt = Peer(model.parameters(), torch.optim.SGD, rho=RHO, foreach=True, lr=LR, momentum=MOMENTUM)

    def step() -> None:
        opt.zero_grad()
        mean_loss(model, x, y)
        opt.first_step(zero_grad=True)
        mean_loss(model, x, y)
        opt.second_step(zero_grad=True)

    return step


def heavyball(model: nn.Module, x: Tensor, y: Tensor) -> Task:
    """SAMWrapper around HeavyBall's SGD."""
    import heavyball as hb

    hb.utils.compile_mode = None
    params = list(model.parameters())
    opt = hb.SAMWrapper(params, hb.SGD(params, lr=LR, beta=MOMENTUM), ball=RHO)

    def step() -> None:
        opt.zero_grad()
        opt.step(functools.partial(mean_loss, model, x, y))

    return step


def measure(make: Callable[[], Problem], repeats: int, in_a_row: int) -> Iterator[str]:
    """A line for each: its own cost, and ours as a multiple of it."""
    tasks = {"bare": bare(*make()), "ours": ours(*make()), "davda54's algorithm": plainly(*make())}
    if importlib.util.find_spec("pytorch_optimizer"):
        tasks["pytorch_optimizer, foreach"] = pytorch_optimizer(*make())
    if importlib.util.find_spec("heavyball"):
        tasks["HeavyBall"] = heavyball(*make())

    def turn(task: Task) -> None:
        for _ in range(in_a_row):
            task()

    seconds = interleaved({k: functools.partial(turn, task) for k, task in tasks.items()}, repeats, warmup=5)
    own = {
        k: statistics.median(a - b for a, b in zip(t, seconds["bare"], strict=True)) / in_a_row
        for k, t in seconds.items()
    }
    n = sum(p.numel() for p in make()[0].parameters())
    whole = statistics.median(seconds["bare"]) / in_a_row
    yield f"{n:,} weights, two passes and a step: {1e3 * whole:.2f} ms"
    for name in [k for k in tasks if k not in ("bare", "ours")]:
        what = f"our own cost to that of {name}, {n:,} weights"
        yield f"{what:<64} {own['ours'] / own[name]:5.2f}    {1e3 * own['ours']:.3f} ms to {1e3 * own[name]:.3f} ms"


def table(part: str) -> str:
    """What ``peers.txt`` holds, as a table in Markdown."""
    assert part == "peers"
    found: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / "peers.txt").read_text().splitlines():
        if match := re.match(r"our own cost to that of (.+), ([\d,]+) weights +([\d.]+)", line):
            found.setdefault(match[1], []).append(match[3])
    sizes = ("4,650 weights", "11,173,962 weights")
    lines = [["", *sizes], ["---", "---:", "---:"], *([name, *ratios] for name, ratios in found.items())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Print a line for each figure as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--smoke", action="store_true", help="one turn of the small network")
    options = parser.parse_args()
    conditions()
    for make, in_a_row in ((small, 20), (large, 1)):
        if options.smoke and make is large:
            continue
        for line in measure(make, 1 if options.smoke else options.repeats, in_a_row):
            print(line, flush=True)


if __name__ == "__main__":
    main()
