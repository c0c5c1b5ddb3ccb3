"""On small networks cost in samples and in seconds differ: a step has a part that does not shrink with the batch.

    python benchmarks/small.py | tee research/speed/small.txt    # about a minute

Epochs over 1,000 digits in batches of 64, of a network 64-256-10 and of one sixty times as large. Ratios of medians of
interleaved epochs on one CPU thread, in wall time and in CPU time, each after its first epoch.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F  # noqa: N812
from side_by_side import conditions, ratios
from sklearn.datasets import load_digits
from torch import Tensor

from ausam import SAM, AUSampling, Feedback, Full, Method, Plain, Policy, SelectiveBatchSampler, SharpnessAware, Trusted

BATCH, SAMPLES = 64, 1000
WIDTHS = {"64-256-10": (256,), "64-1024-1024-10": (1024, 1024)}


class Run:
    """One network in training."""

    def __init__(
        self, widths: tuple[int, ...], method: Method, policy: Policy, data: tuple[Tensor, Tensor], batch: int = BATCH
    ) -> None:
        torch.manual_seed(0)
        sizes = (64, *widths)
        pairs = zip(sizes, widths, strict=False)
        layers = [part for a, b in pairs for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], 10))
        self.x, self.y = data
        self.sampler = SelectiveBatchSampler(SAMPLES, batch, policy, epochs=30)
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

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Per-sample cross-entropy."""
        return F.cross_entropy(self.model(x), y, reduction="none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    conditions()
    x, y = map(torch.tensor, load_digits(return_X_y=True))
    data = x[:SAMPLES].float() / 16, y[:SAMPLES]
    for name, widths in WIDTHS.items():
        runs = {
            "SGD": Run(widths, Plain(), Full(), data),
            "SGD (half batch)": Run(widths, Plain(), Full(), data, BATCH // 2),
            "SAM": Run(widths, SAM(0.05), Full(), data),
            "AUSAM-0.5": Run(widths, SAM(0.05), AUSampling(0.5, ramp=30), data),
            "SAM with Trusted": Run(widths, SAM(0.05, ascent=0.5), Trusted(data[1], alpha=2 / 3), data),
        }
        pairs = [(row, "SGD") for row in runs if row != "SGD"]
        tasks = {row: run.epoch for row, run in runs.items()}
        for line in ratios(f"{name}, batch {BATCH}", tasks, pairs, args.repeats):
            print(line, flush=True)


if __name__ == "__main__":
    main()
