"""Crossings of a batch: how often one steady-state batch of a user's own loop goes from one file to another.

    python benchmarks/crossings.py            # the table by call of the loop
    python benchmarks/crossings.py --pairs    # and which file calls which, how often

A crossing is a call of a function in a file of ``ausam`` by another file: another of ours, or the user's loop. Frames
of torch in between are passed over. ``Indexed``, which torch calls once per sample, is counted apart.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import ausam
from ausam import SAM, AUSampling, Indexed, SelectiveBatchSampler, SharpnessAware

ROOT = Path(ausam.__file__).parent
HERE = "the loop"


def file_of(frame: FrameType | None) -> str:
    """The innermost file of ausam at or above the frame, or the user's loop."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT):
            return str(path.relative_to(ROOT))
        frame = frame.f_back
    return HERE


class Count:
    """Calls and crossings of one part of the loop."""

    def __init__(self) -> None:
        self.calls = 0
        self.pairs: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count inside the context."""

        def hook(frame: FrameType, event: str, _: Any) -> None:
            if event != "call" or not Path(frame.f_code.co_filename).is_relative_to(ROOT):
                return
            self.calls += 1
            caller, callee = file_of(frame.f_back), file_of(frame)
            if caller != callee:
                self.pairs[caller, callee] += 1

        sys.setprofile(hook)
        try:
            yield
        finally:
            sys.setprofile(None)

    @property
    def crossings(self) -> int:
        """Calls from one file to another, without the one per sample that ``Indexed`` needs."""
        return sum(n for (_, callee), n in self.pairs.items() if not callee.endswith("indexed.py"))

    @property
    def files(self) -> set[str]:
        """The files that were entered."""
        return {callee for _, callee in self.pairs}


def count() -> dict[str, Count]:
    """The counts of each call of README's loop, for a batch in the middle of the third epoch."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(320, 8), torch.randint(3, (320,)))
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    train = Indexed(data)
    sampler = SelectiveBatchSampler(train, batch_size=32, policy=AUSampling(alpha=0.5, ramp=30), seed=0)
    loader = DataLoader(train, batch_sampler=sampler)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), SAM(rho=0.05), model)

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(x), y, reduction="none")

    counts = {name: Count() for name in ("next(loader)", "opt.backward", "sampler.update", "opt.step", "opt.zero_grad")}

    def run(name: str, function: Callable[[], Any], *, counted: bool) -> Any:
        if not counted:
            return function()
        with counts[name].counting():
            return function()

    for epoch in range(3):
        batches = iter(loader)
        for i in range(len(sampler)):
            here = epoch == 2 and i == 2
            x, y, index = run("next(loader)", lambda it=batches: next(it), counted=here)
            feedback = run("opt.backward", lambda b=(x, y), k=index: opt.backward(losses, *b, index=k), counted=here)
            run("sampler.update", lambda f=feedback: sampler.update(f), counted=here)
            run("opt.step", opt.step, counted=here)
            run("opt.zero_grad", opt.zero_grad, counted=here)
    return counts


def main() -> None:
    """Print the table."""
    counts = count()
    for name, c in counts.items():
        print(f"{name:<16}{len(c.files):>3} files {c.calls:>4} calls {c.crossings:>4} crossings")
    files = set().union(*(c.files for c in counts.values()))
    total = sum(c.crossings for c in counts.values())
    print(f"{'all':<16}{len(files):>3} files {sum(c.calls for c in counts.values()):>4} calls {total:>4} crossings")
    if "--pairs" in sys.argv:
        every = sum((c.pairs for c in counts.values()), Counter())
        for (caller, callee), n in every.most_common():
            print(f"{n:>4}  {caller} -> {callee}")


if __name__ == "__main__":
    main()
