"""With half of the samples, SAM costs what SGD costs: AUSAM-0.5 is 2.0 times as fast as SAM and level with SGD.

    python benchmarks/speed.py [--repeats 30] [--only memory | loading]

Ratios of medians, the candidates side by side on one CPU thread, in CPU time. The limits, 2.0 and 1.0, are what half of
the samples can give; "SGD, half the batch" is SGD with as many samples. glibc maps and unmaps large activations,
which costs the whole batch a third of its time and the half batch nothing, so the script starts itself again with the
two variables that prevent it. In "loading", a sample takes a millisecond to load.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from side_by_side import interleaved, median_ratio
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ausam import SAM, AUSampling, Feedback, Full, Indexed, Method, Plain, Policy, SelectiveBatchSampler, SharpnessAware
from ausam.common.random import generator
from ausam_lab.networks.build import build

BATCH = 128
DECODE = 1e-3  # seconds per sample
HALF = AUSampling(0.5, ramp=30)
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


def in_memory(repeats: int) -> Iterator[str]:
    """Images in memory, with two networks."""
    for name in ("resnet-tiny", "resnet-small"):
        runs = {
            "SGD": Trained(name, Plain(), Full()),
            "SGD, half the batch": Trained(name, Plain(), Full(), batch=BATCH // 2),
            "SAM": Trained(name, SAM(0.05), Full()),
            "AUSAM-0.5": Trained(name, SAM(0.05), HALF),
        }
        t = interleaved({k: run.epoch_in_memory for k, run in runs.items()}, repeats, clock=time.process_time)
        for a, b in (("SAM", "AUSAM-0.5"), ("AUSAM-0.5", "SGD"), ("SGD, half the batch", "SGD")):
            yield ratio(f"{a} to {b}, in memory, {name}, batch {BATCH}", median_ratio(t[a], t[b]))


def loading(repeats: int) -> Iterator[str]:
    """Samples that take a millisecond to load, chosen before and after loading, at two sizes of the data."""
    for images in (256, 512):
        sgd = Trained("resnet-tiny", Plain(), Full(), images)
        sam, before, after = (Trained("resnet-tiny", SAM(0.05), p, images) for p in (Full(), HALF, HALF))
        tasks = {"SGD": sgd.epoch_loaded, "SAM": sam.epoch_loaded, "AUSAM-0.5": before.epoch_loaded}
        t = interleaved(tasks | {"pick() after loading": after.epoch_picked}, repeats, clock=time.process_time)
        for a, b in (("SAM", "AUSAM-0.5"), ("AUSAM-0.5", "SGD"), ("SAM", "pick() after loading")):
            yield ratio(f"{a} to {b}, 1 ms to load a sample, {images} images", median_ratio(t[a], t[b]))


def ratio(what: str, value: float) -> str:
    """One line of the table."""
    return f"{what:<80} {value:6.2f}"


class Trained:
    """A small network on random images, trained by one method with one policy."""

    def __init__(self, model: str, method: Method, policy: Policy, images: int = 512, batch: int = BATCH) -> None:
        rng = generator(1)
        self.x = torch.randn(images, 3, 32, 32, generator=rng)
        self.y = torch.randint(10, (images,), generator=rng)
        self.model = build(model, 10, 3, seed=0)
        self.sampler = SelectiveBatchSampler(images, batch, policy)
        base = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.opt = SharpnessAware(base, method, self.model)
        self.sampler.set_epoch(1)  # past the first epoch, which uses every sample
        everyone, ones = torch.arange(images), torch.ones(images)
        self.sampler.update(Feedback(everyone, ones, ones + torch.rand(images, generator=rng)))

    def step(self, x: Tensor, y: Tensor, index: Tensor) -> None:
        """One step of the method, with its feedback to the sampler."""
        self.sampler.update(self.opt.backward(self.losses, x, y, index=index))
        self.opt.step()
        self.opt.zero_grad()

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Per-sample cross-entropy."""
        return F.cross_entropy(self.model(x), y, reduction="none")

    def epoch_in_memory(self) -> None:
        """An epoch over tensors."""
        for chosen in self.sampler:
            index = torch.tensor(chosen)
            self.step(self.x[index], self.y[index], index)

    def epoch_loaded(self) -> None:
        """An epoch through a DataLoader that loads only the chosen samples."""
        for x, y, index in DataLoader(Indexed(Slow(self.x, self.y)), batch_sampler=self.sampler):
            self.step(x, y, index)

    def epoch_picked(self) -> None:
        """An epoch through a DataLoader that loads everything, with selection afterwards."""
        for x, y, index in DataLoader(Indexed(Slow(self.x, self.y)), batch_size=BATCH, shuffle=True):
            keep = self.sampler.pick(index)
            self.step(x[keep], y[keep], index[keep])


class Slow(Dataset[tuple[Tensor, Tensor]]):
    """Images that take a millisecond of CPU time each to decode and augment."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        end = time.process_time() + DECODE
        while time.process_time() < end:
            pass
        return self.x[i], self.y[i]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--only", choices=["memory", "loading"])
    args = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATOR)
    torch.set_num_threads(1)
    for name, part in (("memory", in_memory), ("loading", loading)):
        if args.only in (None, name):
            for line in part(args.repeats):
                print(line, flush=True)


if __name__ == "__main__":
    main()
