"""What planning an epoch costs: ``python benchmarks/planning.py 10000000 100000000``.

Each size runs in a process of its own. The scores are filled in, and the second epoch is planned and handed out batch
by batch. The processor's time says more than the clock's where others use the machine too. Memory is the peak beyond
the score table.
"""

from __future__ import annotations

import io
import multiprocessing
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from ausam import AUSampling, SelectiveBatchSampler
from ausam.random import generator

BATCH = 128
TABLE = 12  # bytes per sample of the scores


@dataclass(frozen=True)
class Planning:
    """The cost of planning one epoch."""

    samples: int
    build_seconds: float
    first_batch_seconds: float
    nanoseconds_per_sample: float
    processor_nanoseconds_per_sample: float
    bytes_per_sample: float
    state_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.samples:>11} samples: built in {self.build_seconds:.2f} s, first batch after "
            f"{self.first_batch_seconds:.3f} s, {self.nanoseconds_per_sample:.0f} ns per sample "
            f"({self.processor_nanoseconds_per_sample:.0f} of the processor), "
            f"{self.bytes_per_sample:.2f} bytes per sample beyond the scores at peak, "
            f"{self.state_bytes} bytes to resume from the middle"
        )


def measure(samples: int, unbiased: bool = False) -> Planning:
    """Plan an epoch of so many samples in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (samples, unbiased))


def _measure(samples: int, unbiased: bool) -> Planning:
    torch.set_num_threads(1)
    policy = AUSampling(0.5, unbiased=unbiased)
    _epoch(SelectiveBatchSampler(1000, BATCH, policy))  # what is allocated once
    before = _peak(forget=True)
    start = time.perf_counter()
    sampler = SelectiveBatchSampler(samples, BATCH, policy)
    build = time.perf_counter() - start
    first, clock, processor, state = _epoch(sampler)
    held = (_peak() - before) / samples - TABLE
    return Planning(samples, build, first, 1e9 * clock / samples, 1e9 * processor / samples, held, state)


def _epoch(sampler: SelectiveBatchSampler) -> tuple[float, float, float, int]:
    """Seconds until the first batch; for all of them, by two clocks; bytes of what a state holds beside the scores."""
    scores = sampler.scores
    scores.sum.uniform_(generator=generator(1))
    scores.count.fill_(1)
    sampler.set_epoch(1)
    start, processor = time.perf_counter(), time.process_time()
    batches = iter(sampler)
    index = next(batches)
    first = time.perf_counter() - start
    epoch = sampler._pass
    middle, state = epoch.plan.total // 2, 0
    epoch.consumed = len(index)
    for index in batches:
        epoch.consumed += len(index)  # as an update would tell
        if not state and epoch.consumed > middle:
            state = _saved(epoch.state_dict())
    return first, time.perf_counter() - start, time.process_time() - processor, state


def _saved(state: object) -> int:
    file = io.BytesIO()
    torch.save(state, file)
    return len(file.getvalue())


def _peak(forget: bool = False) -> int:
    """The most memory this process has held, in bytes; with ``forget`` counted from now on."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if forget:
        # A child begins with its parent's peak, which may lie above anything it will ever need.
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    for size in sys.argv[1:] or ["10000000"]:
        print(measure(int(size)), flush=True)
        print(measure(int(size), unbiased=True), "(unbiased=True)", flush=True)
