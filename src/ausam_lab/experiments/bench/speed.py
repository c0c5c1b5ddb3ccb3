"""Training speed: AUSAM-0.5 compared with SAM and with SGD."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ausam import SAM, AUSampling, Feedback, Full, Indexed, Method, Plain, Policy, SelectiveBatchSampler, SharpnessAware
from ausam.common.random import generator
from ausam_lab.experiments.side_by_side import OnTurn, interleaved, median_ratio
from ausam_lab.networks.build import build

BATCH = 128
DECODE = 1e-3  # seconds per sample
HALF = AUSampling(0.5, ramp=30)


def in_memory(repeats: int, on_turn: OnTurn) -> Iterator[str]:
    """Images in memory, with two networks."""
    for name in ("resnet-tiny", "resnet-small"):
        runs = {
            "SGD": Trained(name, Plain(), Full()),
            "SAM": Trained(name, SAM(0.05), Full()),
            "AUSAM-0.5": Trained(name, SAM(0.05), HALF),
        }
        what = f"images in memory, {name}, batch {BATCH}"
        tasks = {k: run.epoch_in_memory for k, run in runs.items()}
        t = interleaved(tasks, repeats, title=what, on_turn=on_turn)
        yield ratio(f"SAM's time against AUSAM-0.5's, {what}", median_ratio(t["SAM"], t["AUSAM-0.5"]), repeats)
        yield ratio(f"AUSAM-0.5's time against SGD's, {what}", median_ratio(t["AUSAM-0.5"], t["SGD"]), repeats)


def loading(repeats: int, on_turn: OnTurn) -> Iterator[str]:
    """Samples that take a millisecond to load, chosen before and after loading, at two sizes of the data."""
    for images in (256, 512):
        sgd = Trained("resnet-tiny", Plain(), Full(), images)
        sam, before, after = (Trained("resnet-tiny", SAM(0.05), p, images) for p in (Full(), HALF, HALF))
        what = f"1 ms to load a sample, {images} images"
        t = interleaved(
            {
                "sgd": sgd.epoch_loaded,
                "sam": sam.epoch_loaded,
                "before": before.epoch_loaded,
                "after": after.epoch_picked,
            },
            repeats,
            title=what,
            on_turn=on_turn,
        )
        yield ratio(
            f"SAM's time against AUSAM-0.5's, chosen before loading, {what}",
            median_ratio(t["sam"], t["before"]),
            repeats,
        )
        yield ratio(
            f"AUSAM-0.5's time against SGD's, chosen before loading, {what}",
            median_ratio(t["before"], t["sgd"]),
            repeats,
        )
        yield ratio(
            f"SAM's time against AUSAM-0.5's, pick() after loading, {what}", median_ratio(t["sam"], t["after"]), repeats
        )


def ratio(what: str, value: float, repeats: int) -> str:
    """One line of the table."""
    return f"{what:<96} {value:6.2f}x  (medians of {repeats})"


class Trained:
    """A small network on random images, trained by one method with one policy."""

    def __init__(self, model: str, method: Method, policy: Policy, images: int = 512, size: int = 32) -> None:
        rng = generator(1)
        self.x = torch.randn(images, 3, size, size, generator=rng)
        self.y = torch.randint(10, (images,), generator=rng)
        self.model = build(model, 10, 3, seed=0)
        self.sampler = SelectiveBatchSampler(images, BATCH, policy)
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
        end = time.perf_counter() + DECODE
        while time.perf_counter() < end:
            pass
        return self.x[i], self.y[i]
