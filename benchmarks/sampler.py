"""Every policy plans an epoch of 10^7 samples in 2 s of CPU time with at most 24 bytes a sample beyond the scores.

    python benchmarks/sampler.py [--samples 10000000] [--only planning | exchange | peak]

"exchange" is of an epoch's scores between two processes, in seconds; "peak" SAM's memory beyond SGD's, in copies of the
weights.
Each measurement has a process of its own, on one CPU thread.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ausam import (
    POLICIES,
    SAM,
    AUSampling,
    ClassBalanced,
    Feedback,
    Plain,
    Policy,
    SelectiveBatchSampler,
    SharpnessAware,
    Trusted,
    Weighted,
)
from ausam.common.random import generator

BATCH = 128
WORLD, EXCHANGES = 2, 5
WIDTHS, STEPS = (1500, 3000), 3
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # larger blocks are mapped, and unmapped when freed: a step's own peak


def variants(samples: int) -> dict[str, Policy]:
    """Every policy, and options with a cost of their own."""
    labels = torch.arange(samples, dtype=torch.int32) % 10
    own: dict[str, Policy] = {
        "AUSampling": AUSampling(ramp=0),
        "AUSampling, unbiased": AUSampling(ramp=0, unbiased=True),
        "AUSampling, by rank": AUSampling(ramp=0, odds="rank"),
        "ClassBalanced": ClassBalanced(labels),
        "Trusted": Trusted(labels, start=1),
        "Weighted, without replacement": Weighted(0.5, replacement=False),
    }
    return {name: policy() for name, policy in POLICIES.items() if name not in own} | own


def planning(samples: int) -> Iterator[str]:
    """CPU time and memory of planning an epoch."""
    for name in variants(10):
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            seconds, held = pool.apply(first_batch, (name, samples))
        yield f"{name}: {samples:,} samples planned in {seconds:.2f} s of CPU time, {held:.1f} bytes per sample"


def first_batch(name: str, samples: int) -> tuple[float, float]:
    """Seconds of CPU time until the first batch of the second epoch, and peak bytes per sample beyond the scores."""
    torch.set_num_threads(1)
    if samples > BATCH:
        first_batch(name, BATCH)  # warm-up: one-time allocations
    sampler = SelectiveBatchSampler(samples, BATCH, variants(samples)[name])
    scores = sampler.scores
    scores.sum.uniform_(generator=generator(1))
    scores.last.copy_(scores.sum)
    scores.count.fill_(2)
    sampler.set_epoch(1)
    before = resident(forget=True)
    start = time.process_time()
    next(iter(sampler))
    return time.process_time() - start, (resident() - before) / samples


def _feed_back(sampler: SelectiveBatchSampler, index: list[int]) -> None:
    """Feed back the losses of consumed samples."""
    loss = torch.ones(len(index))
    sampler.update(Feedback(torch.tensor(index), loss, loss + 0.1))


def exchange(samples: int) -> Iterator[str]:
    """Time of exchanging one new score of each sample between two processes."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        with multiprocessing.get_context("spawn").Pool(WORLD) as pool:
            of_ranks = pool.starmap(one_process, [(rank, store, samples) for rank in range(WORLD)], chunksize=1)
    seconds = statistics.median(map(max, zip(*of_ranks, strict=True)))
    yield f"exchange of {samples:,} scores: {seconds:.2f} s, {1e9 * seconds / samples:.0f} ns per sample"


def one_process(rank: int, store: Path, samples: int) -> list[float]:
    """Seconds of each exchange in one process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store.as_uri(), rank=rank, world_size=WORLD)
    try:
        sampler = SelectiveBatchSampler(samples, BATCH, AUSampling(0.5, ramp=0), rank=rank, world_size=WORLD)
        seconds = []
        for _ in range(EXCHANGES):
            _feed_back(sampler, [i for index in sampler for i in index])
            dist.barrier()
            start = time.perf_counter()
            sampler.exchange()
            seconds.append(time.perf_counter() - start)
        return seconds
    finally:
        dist.destroy_process_group()


def peak(samples: int) -> Iterator[str]:  # noqa: ARG001  (a network, not a sampler)
    """Peak memory of SAM beyond plain SGD's, in copies of the parameters, at two sizes."""
    os.environ |= GIVE_BACK  # for the processes that start now
    for width in WIDTHS:
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            copies, parameters = pool.apply(beyond_sgd, (width,))
        yield f"SAM's peak memory beyond SGD's, {parameters:,} parameters: {copies:.2f} copies of the parameters"


def beyond_sgd(width: int) -> tuple[float, int]:
    """Peak memory of a SAM step beyond an SGD step, in copies of the parameters, and the number of parameters."""
    torch.set_num_threads(1)
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(4)])
    x = torch.randn(2, width)
    base = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    params = sum(p.numel() for p in model.parameters())
    peaks = []
    for method in (Plain(), SAM(0.05)):
        opt = SharpnessAware(base, method, model)
        for _ in range(STEPS):
            start = resident(forget=True)
            opt.backward(lambda x: model(x).square().mean(1), x)
            opt.step()
            opt.zero_grad()
        peaks.append(resident() - start)
    return (peaks[1] - peaks[0]) / (4 * params), params


def resident(forget: bool = False) -> int:
    """The peak memory of this process in bytes, on Linux; ``forget`` resets the peak, which a child inherits."""
    if forget:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


PARTS = {"planning": planning, "exchange": exchange, "peak": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--only", choices=list(PARTS))
    args = parser.parse_args()
    for name, part in PARTS.items():
        if args.only in (None, name):
            for line in part(args.samples):
                print(line, flush=True)


if __name__ == "__main__":
    main()
