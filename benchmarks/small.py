"""On small networks cost in samples and in seconds differ: a step has a part that does not shrink with the batch.

    python benchmarks/small.py [--repeats 30]

A step on a batch of 64 of the digits, of a network 64-256-10 and of one a hundred times as large, in CPU time of one
thread. Ratios of medians, the candidates side by side, each after its first epoch.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
import torch.nn.functional as F  # noqa: N812
from side_by_side import interleaved, median_ratio
from sklearn.datasets import load_digits
from speed import ALLOCATOR, ratio

from ausam import SAM, AUSampling, Feedback, Full, Method, Plain, Policy, SelectiveBatchSampler, SharpnessAware, Trusted

BATCH, SAMPLES = 64, 1000
WIDTHS = {"64-256-10": (256,), "64-1024-1024-10": (1024, 1024)}


class Run:
    """One network in training."""

    def __init__(
        self, widths: tuple[int, ...], method: Method, policy: Policy, x: torch.Tensor, y: torch.Tensor
    ) -> None:
        torch.manual_seed(0)
        sizes = (64, *widths)
        pairs = zip(sizes, widths, strict=False)
        layers = [part for a, b in pairs for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], 10))
        self.x, self.y = x, y
        self.sampler = SelectiveBatchSampler(SAMPLES, BATCH, policy, epochs=30)
        self.opt = SharpnessAware(torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9), method, self.model)
        self.sampler.set_epoch(1)
        everyone, ones = torch.arange(SAMPLES), torch.ones(SAMPLES)
        self.sampler.update(Feedback(everyone, ones, ones + torch.rand(SAMPLES)))

    def epoch(self) -> None:
        """One epoch over tensors, as the lab trains digits."""
        for chosen in self.sampler:
            index = torch.tensor(chosen)
            self.sampler.update(self.opt.backward(self.losses, self.x[index], self.y[index], index=index))
            self.opt.step()
            self.opt.zero_grad()

    def losses(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Per-sample cross-entropy."""
        return F.cross_entropy(self.model(x), y, reduction="none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATOR)
    torch.set_num_threads(1)
    x, y = map(torch.tensor, load_digits(return_X_y=True))
    x, y = x[:SAMPLES].float() / 16, y[:SAMPLES]
    for name, widths in WIDTHS.items():
        runs = {
            "SGD": Run(widths, Plain(), Full(), x, y),
            "SAM": Run(widths, SAM(0.05), Full(), x, y),
            "AUSAM-0.5": Run(widths, SAM(0.05), AUSampling(0.5, ramp=30), x, y),
            "SAM with Trusted": Run(widths, SAM(0.05, ascent=0.5), Trusted(y, alpha=2 / 3), x, y),
        }
        t = interleaved({k: run.epoch for k, run in runs.items()}, args.repeats, clock=time.process_time)
        for a, b in (("SAM", "SGD"), ("AUSAM-0.5", "SGD"), ("SAM with Trusted", "SGD")):
            print(ratio(f"{a} to {b}, {name}, batch {BATCH}", median_ratio(t[a], t[b])), flush=True)


if __name__ == "__main__":
    main()
