"""``ausam bench step``: what a step costs, as ratios of medians measured side by side in one run."""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ausam import SAM, AUSampling, Feedback, Full, Indexed, SelectiveBatchSampler, SharpnessAware
from ausam.lab.experiments.side_by_side import interleaved, median_ratio
from ausam.lab.networks.build import build
from ausam.random import generator

IMAGES = 512
BATCH = 128
DECODE = 1e-3  # seconds a sample


def main(repeats: int, only: str, out: TextIO) -> int:
    """Run all parts, or one, and write a line for each ratio."""
    if only and only not in PARTS:
        raise ValueError(f'There is no part "{only}" of the benchmark. Known: {", ".join(PARTS)}.')
    for name, part in PARTS.items():
        if only in ("", name):
            out.write("\n".join(part(repeats)) + "\n")
            out.flush()
    return 0


class Trained:
    """A small network on random images, trained by SAM with one policy."""

    def __init__(self, model: str, policy: Full | AUSampling, images: int = IMAGES, size: int = 32) -> None:
        rng = generator(1)
        self.x = torch.randn(images, 3, size, size, generator=rng)
        self.y = torch.randint(10, (images,), generator=rng)
        self.model = build(model, 10, 3, seed=0)
        self.sampler = SelectiveBatchSampler(images, BATCH, policy)
        base = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.opt = SharpnessAware(base, SAM(0.05), self.model)
        self.sampler.set_epoch(1)  # past the first epoch, which uses every sample
        everyone, ones = torch.arange(images), torch.ones(images)
        self.sampler.update(Feedback(everyone, ones, ones + torch.rand(images, generator=rng)))

    def step(self, x: Tensor, y: Tensor, index: Tensor) -> None:
        """One step of SAM, with its feedback to the sampler."""
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
        """An epoch through a DataLoader that is asked for the chosen samples only."""
        for x, y, index in DataLoader(Indexed(Slow(self.x, self.y)), batch_sampler=self.sampler):
            self.step(x, y, index)

    def epoch_picked(self) -> None:
        """An epoch through a DataLoader that loads everything, with the choice after it."""
        for x, y, index in DataLoader(Indexed(Slow(self.x, self.y)), batch_size=BATCH, shuffle=True):
            keep = self.sampler.pick(index)
            self.step(x[keep], y[keep], index[keep])


class Slow(Dataset[tuple[Tensor, Tensor]]):
    """Images that take a millisecond each to decode and augment, on the processor."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        end = time.perf_counter() + DECODE
        while time.perf_counter() < end:
            pass
        return self.x[i], self.y[i]


def memory(repeats: int) -> list[str]:
    """AUSAM-0.5 against SAM with images in memory."""
    sam, ausam = Trained("resnet-small", Full()), Trained("resnet-small", AUSampling(0.5))
    t = interleaved({"sam": sam.epoch_in_memory, "ausam": ausam.epoch_in_memory}, repeats)
    return [
        _line(
            "AUSAM-0.5 against SAM, images in memory, small ResNet, batch 128",
            median_ratio(t["sam"], t["ausam"]),
            repeats,
        )
    ]


def loading(repeats: int) -> list[str]:
    """AUSAM-0.5 against SAM when each sample takes a millisecond to load: chosen before loading, and after."""
    sam, before, after = (Trained("resnet-tiny", p, 256) for p in (Full(), AUSampling(0.5), AUSampling(0.5)))
    t = interleaved({"sam": sam.epoch_loaded, "before": before.epoch_loaded, "after": after.epoch_picked}, repeats)
    return [
        _line(
            "AUSAM-0.5 against SAM, loading 1 ms a sample, chosen before loading",
            median_ratio(t["sam"], t["before"]),
            repeats,
        ),
        _line("the same with pick() after loading", median_ratio(t["sam"], t["after"]), repeats),
    ]


def overhead(repeats: int) -> list[str]:
    """What SAM costs beyond two forward-backwards and one base step: ResNet-18, one thread."""
    t = one_thread({"bare": bare_step(), "own": our_step()}, repeats)
    extra = statistics.median(a - b for a, b in zip(t["own"], t["bare"], strict=True))
    what = f"SAM's step against two forward-backwards and a base step, 11 M parameters ({1e3 * extra:+.1f} ms)"
    return [_line(what, median_ratio(t["own"], t["bare"]), repeats)]


def small_batch() -> tuple[Tensor, Tensor]:
    """A batch so small that what the method itself does is seen beside the passes."""
    return torch.randn(2, 3, 16, 16, generator=generator(1)), torch.tensor([0, 1])


def bare_step() -> Callable[[], None]:
    """Two forward-backwards and one step of SGD."""
    (x, y), model = small_batch(), build("resnet18", 10, 3, seed=0)
    base = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        for _ in range(2):
            base.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(x), y))
        base.step()

    return step


def our_step() -> Callable[[], None]:
    """One step of our SAM."""
    (x, y), model = small_batch(), build("resnet18", 10, 3, seed=0)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), SAM(0.05), model)

    def step() -> None:
        opt.zero_grad()
        opt.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y)
        opt.step()

    return step


def one_thread(tasks: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each task, measured side by side with one CPU thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return interleaved(tasks, repeats, warmup=5)
    finally:
        torch.set_num_threads(threads)


def planning(repeats: int, n: int = 10_000_000) -> list[str]:  # noqa: ARG001  (once: it is a size, not a speed)
    """Time and peak memory of planning an epoch over ten million samples, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds, peak = pool.apply(_plan, (n,))
    return [f"{'planning an epoch, 10 million samples':<78} {seconds:6.2f} s, {peak / n:.0f} bytes a sample at peak"]


def _plan(n: int) -> tuple[float, int]:
    next(iter(SelectiveBatchSampler(1000, BATCH, AUSampling(0.5))))  # what torch allocates once
    before = _peak(forget=True)
    sampler = SelectiveBatchSampler(n, BATCH, AUSampling(0.5))
    sampler.scores.sum.uniform_(generator=generator(1))
    sampler.scores.count.fill_(1)
    sampler.set_epoch(1)
    start = time.perf_counter()
    next(iter(sampler))
    seconds = time.perf_counter() - start
    return seconds, _peak() - before


def _peak(forget: bool = False) -> int:
    """The most memory this process has held, in bytes; with ``forget`` counted from now on."""
    status = Path("/proc/self/status")
    if not status.exists():
        if sys.platform == "win32":
            raise ValueError("Peak memory is not measured on Windows. Leave the part planning out with --only.")
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if forget:
        # A child begins with its parent's peak, which may lie above anything it will ever need.
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _line(what: str, ratio: float, repeats: int) -> str:
    return f"{what:<78} {ratio:6.2f}x  (medians of {repeats})"


PARTS: dict[str, Callable[[int], list[str]]] = {
    "memory": memory,
    "loading": loading,
    "overhead": overhead,
    "planning": planning,
}
