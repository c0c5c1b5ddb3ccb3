"""With half of the samples, SAM costs what SGD costs: AUSAM-0.5 is 2.0 times as fast as SAM and level with SGD.

    python benchmarks/speed.py | tee research/speed/speed.txt    # about three minutes; --only memory, --only loading

Ratios of medians of interleaved epochs on one CPU thread, in wall time and in CPU time. The limits, 2.0 and 1.0, are
what half of the samples can give; "SGD (half batch)" is SGD with as many samples. In "loading", a sample takes a
millisecond of CPU time to load.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from side_by_side import conditions, ratios
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ausam import SAM, AUSampling, Feedback, Full, Indexed, Method, Plain, Policy, SelectiveBatchSampler, SharpnessAware
from ausam.common.random import generator
from ausam_lab.networks.build import build

BATCH, IMAGES = 128, 512
DECODE = 1e-3  # seconds per sample
HALF = AUSampling(0.5, ramp=30)
PAIRS = [("SAM", "AUSAM-0.5"), ("AUSAM-0.5", "SGD"), ("SAM", "SGD")]


def in_memory(repeats: int) -> Iterator[str]:
    """Images in memory, with two networks."""
    for name in ("resnet-tiny", "resnet-small"):
        runs = {
            "SGD": Trained(name, Plain(), Full()),
            "SGD (half batch)": Trained(name, Plain(), Full(), batch=BATCH // 2),
            "SAM": Trained(name, SAM(0.05), Full()),
            "AUSAM-0.5": Trained(name, SAM(0.05), HALF),
        }
        tasks = {name: run.epoch_in_memory for name, run in runs.items()}
        yield from ratios(f"in memory, {name}, batch {BATCH}", tasks, [*PAIRS, ("SGD (half batch)", "SGD")], repeats)


def loading(repeats: int) -> Iterator[str]:
    """Samples that take a millisecond to load, chosen before and after loading."""
    sgd = Trained("resnet-tiny", Plain(), Full())
    sam, before, after = (Trained("resnet-tiny", SAM(0.05), policy) for policy in (Full(), HALF, HALF))
    tasks = {"SGD": sgd.epoch_loaded, "SAM": sam.epoch_loaded, "AUSAM-0.5": before.epoch_loaded}
    tasks["pick() after loading"] = after.epoch_picked
    yield from ratios("1 ms to load a sample", tasks, [*PAIRS, ("SAM", "pick() after loading")], repeats)


class Trained:
    """A small network on random images, trained by one method with one policy."""

    def __init__(self, model: str, method: Method, policy: Policy, batch: int = BATCH) -> None:
        rng, images = generator(1), IMAGES
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
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", choices=["memory", "loading"])
    args = parser.parse_args()
    conditions()
    for name, part in (("memory", in_memory), ("loading", loading)):
        if args.only in (None, name):
            for line in part(args.repeats):
                print(line, flush=True)


if __name__ == "__main__":
    main()
