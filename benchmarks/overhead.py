"""The overhead of SAM beyond its two forward-backwards and the base optimizer's step, side by side with others.

    python benchmarks/overhead.py [--repeats 30] [--only large | small | audit]    # the peer: pytorch_optimizer

Everything runs on one CPU thread.

All candidates back-propagate the mean of the same per-sample losses twice, clear the gradients and take SGD's step. The
time of a bare loop is subtracted. Only our overhead includes a check that all numbers are finite, the rollback of a
step that an error or a signal interrupts, a check for added or removed modules, and the per-sample losses as feedback.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812
from side_by_side import interleaved
from torch import Tensor, nn

import ausam.methods.sam
import ausam.optimizer.nonfinite
from ausam import SAM, Feedback, Method, Plain, Scores, SharpnessAware, Trusted
from ausam.audit import Audit
from ausam.audit.audit import WAITING
from ausam.common.random import generator
from ausam.optimizer.buffers import Snapshot
from ausam.optimizer.displacement import Displacement, Swappable
from ausam.optimizer.gradients import GradientSlots
from ausam.optimizer.parameters import TrainedParameters
from ausam_lab.networks.build import build

RHO, LR, MOMENTUM = 0.05, 1e-3, 0.9
PARTS: dict[str, list[tuple[Any, str]]] = {
    "norm and scaling": [(ausam.methods.sam, "ascent_")],
    "moving the weights": [(Displacement, "__enter__"), (Displacement, "__exit__")],
    "finite or not": [(ausam.optimizer.nonfinite, "nonfinite_flag")],
    "buffers": [(Snapshot, "take"), (Snapshot, "restore")],
    "gradient slots": [(GradientSlots, "__init__"), (GradientSlots, "collect"), (GradientSlots, "deposit")],
    "what has changed": [(TrainedParameters, "refresh"), (Swappable, "__call__")],
}
Make = Callable[[], tuple[nn.Module, Tensor, Tensor]]
Task = Callable[[], object]


def large(repeats: int) -> Iterator[str]:
    """Large networks, where operations on the weights dominate. Compared with a peer, if it is installed."""
    for name in ("resnet-small", "resnet18"):
        yield from _compare(functools.partial(_images, name), repeats)


def small(repeats: int) -> Iterator[str]:
    """Small networks, where Python dominates. Compared with hand-written SAM, with a breakdown of our time."""
    for width in (64, 256):
        make = functools.partial(_tiny, width)
        yield from _compare(make, 10 * repeats, in_a_row=20)
        yield _breakdown(make, 100 * repeats)


def audit(repeats: int) -> Iterator[str]:
    """What the audit and the plan of Trusted add to an epoch of the smallest network of the lab."""
    model, n = build("resnet-tiny", 10, 1, seed=0), 64
    x, y = torch.randn(n, 1, 8, 8, generator=generator(1)), torch.arange(n) % 10

    def losses(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = model(x)
        return F.cross_entropy(z, y, reduction="none"), z

    def step_of(method: Method) -> Task:
        opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM), method, model)

        def step() -> None:
            opt.backward(losses, x, y, index=y)
            opt.step()
            opt.zero_grad()

        return functools.partial(_row, step, WAITING)

    log = Audit(n * WAITING, y.repeat(WAITING))
    with torch.no_grad():
        loss, z = losses(x, y)
    epoch = [Feedback(torch.arange(n) + n * i, loss, loss, z) for i in range(WAITING)]  # each sample once

    def fed() -> None:
        for feedback in epoch:
            log.update(feedback)

    seconds = _one_thread({"SGD": step_of(Plain()), "SAM": step_of(SAM(RHO)), "audit": fed}, repeats)
    middle = {k: statistics.median(t) for k, t in seconds.items()}
    for name in ("SGD", "SAM"):
        what = f"The audit's time against that of a step of {name}, resnet-tiny, batch {n}"
        yield f"{what:<96} {100 * middle['audit'] / middle[name]:6.2f} %  (medians of {repeats})"
    many = 10_000_000
    scores = Scores(many, 0.5)
    scores.record(torch.arange(many), torch.rand(many, generator=generator(2)))
    policy = Trusted(torch.arange(many) % 1000, epochs=30)
    fit = statistics.median(_one_thread({"fit": lambda: policy.fit(scores, 20)}, 3)["fit"])
    per_sample = middle["SGD"] / WAITING / n
    what = f"Trusted's decisions for {many:,} samples ({fit:.1f} s) against an epoch of SGD, resnet-tiny"
    yield f"{what:<96} {100 * fit / (many * per_sample):6.2f} %  (medians of 3)"


def _compare(make: Make, repeats: int, in_a_row: int = 1) -> Iterator[str]:
    """Medians over ``repeats`` turns; in each, every task takes several steps in a row, as in training."""
    tasks = {"bare": bare(*make()), "ours": ours(*make()), "by hand": by_hand(*make())}
    if importlib.util.find_spec("pytorch_optimizer"):
        tasks["pytorch_optimizer"] = peer(*make())
    seconds = _one_thread({k: functools.partial(_row, task, in_a_row) for k, task in tasks.items()}, repeats)
    beyond = {k: [a - b for a, b in zip(t, seconds["bare"], strict=True)] for k, t in seconds.items()}
    own = {k: statistics.median(t) / in_a_row for k, t in beyond.items()}
    n = sum(p.numel() for p in make()[0].parameters())
    for other in [k for k in tasks if k not in ("bare", "ours")]:
        times = f"{1e3 * own['ours']:.2f} ms against {1e3 * own[other]:.2f} ms"
        what = f"SAM's own cost against {other}'s, {n:,} parameters ({times})"
        yield f"{what:<96} {own['ours'] / own[other]:6.2f}x  (medians of {repeats})"


def _row(task: Task, steps: int) -> None:
    for _ in range(steps):
        task()


def _breakdown(make: Make, steps: int) -> str:
    """The time of each feature in our step: medians, with a clock around its functions (0.1 us per call, included)."""
    spent: dict[str, list[float]] = {part: [] for part in PARTS}
    now = dict.fromkeys(PARTS, 0.0)

    def timed(part: str, function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def with_clock(*args: object, **kwargs: object) -> object:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            now[part] += time.perf_counter() - start
            return result

        return with_clock

    step = ours(*make())

    def one() -> None:
        now.update(dict.fromkeys(PARTS, 0.0))
        step()
        for part, seconds in now.items():
            spent[part].append(seconds)

    with contextlib.ExitStack() as patches:
        for part, functions in PARTS.items():
            for owner, name in functions:
                patches.enter_context(mock.patch.object(owner, name, timed(part, getattr(owner, name))))
        _one_thread({"step": one}, steps)
    parts = ", ".join(f"{part} {1e6 * statistics.median(t):.0f} us" for part, t in spent.items())
    return f"  of which, {sum(p.numel() for p in make()[0].parameters()):,} parameters: {parts}; the rest is Python's"


def _images(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A batch so small that the method's own cost is visible next to the passes."""
    return build(name, 10, 3, seed=0), torch.randn(2, 3, 16, 16, generator=generator(1)), torch.tensor([0, 1])


def _tiny(width: int) -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(nn.Linear(32, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width // 2))
    model.extend([nn.ReLU(), nn.Linear(width // 2, 10)])
    return model, torch.randn(32, 32, generator=generator(1)), torch.arange(32) % 10


def _mean_backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
    torch.autograd.backward(F.cross_entropy(model(x), y, reduction="none").mean())


def bare(model: nn.Module, x: Tensor, y: Tensor) -> Task:
    """Two forward-backwards and one step of SGD."""
    base = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)

    def step() -> None:
        for _ in range(2):
            base.zero_grad()
            _mean_backward(model, x, y)
        base.step()

    return step


def ours(model: nn.Module, x: Tensor, y: Tensor) -> Task:
    """One step of our SAM."""
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM), SAM(RHO), model)

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    def step() -> None:
        opt.zero_grad()
        opt.backward(losses, x, y)
        opt.step()

    return step


def by_hand(model: nn.Module, x: Tensor, y: Tensor) -> Task:
    """SAM as a careful user writes it for this model: fused operations, buffers that move once, undone if it fails.

    No check of the numbers, no feedback, no look for changes of the model; weights are copied, not swapped.
    """
    params: list[Tensor] = list(model.parameters())
    buffers = list(model.buffers())
    base = torch.optim.SGD(params, lr=LR, momentum=MOMENTUM)

    def step() -> None:
        base.zero_grad()
        undo: list[Task] = []
        try:
            before = [b.clone() for b in buffers]
            undo.append(lambda: torch._foreach_copy_(buffers, before))
            _mean_backward(model, x, y)
            moved = [b.clone() for b in buffers]
            with torch.no_grad():
                g: list[Tensor] = [p.grad for p in params if p.grad is not None]
                size = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(g)))
                saved = [p.clone() for p in params]
                undo.append(lambda: torch._foreach_copy_([p.detach() for p in params], saved))
                torch._foreach_add_(params, list(torch._foreach_mul(g, RHO / (size + 1e-12))))
            base.zero_grad()
            _mean_backward(model, x, y)
            with torch.no_grad():
                torch._foreach_copy_(params, saved)
                torch._foreach_copy_(buffers, moved)
        except BaseException:
            base.zero_grad()
            for restore in reversed(undo):
                restore()
            raise
        base.step()

    return step


def peer(model: nn.Module, x: Tensor, y: Tensor) -> Task:
    """One step of pytorch_optimizer's SAM."""
    from pytorch_optimizer import SAM as Peer  # noqa: N811

    opt = Peer(model.parameters(), base_optimizer=torch.optim.SGD, rho=RHO, lr=LR, momentum=MOMENTUM)

    def step() -> None:
        opt.zero_grad()
        _mean_backward(model, x, y)
        opt.first_step(zero_grad=True)
        _mean_backward(model, x, y)
        opt.second_step(zero_grad=True)

    return step


def _one_thread(tasks: dict[str, Task], repeats: int) -> dict[str, list[float]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return interleaved(tasks, repeats, warmup=5)
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    """Print a line for each figure as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--only", choices=["large", "small", "audit"])
    args = parser.parse_args()
    for name, part in {"large": large, "small": small, "audit": audit}.items():
        if args.only in (None, name):
            for line in part(args.repeats):
                print(line, flush=True)


if __name__ == "__main__":
    main()
