"""An epoch of 10^7 samples is planned in 2 s with at most 24 bytes a sample; its scores are exchanged in seconds.

    python benchmarks/sampler.py [--samples 10000000] [--only planning | exchange | peak]

"exchange" is of an epoch's scores between two processes, "peak" SAM's memory beyond SGD's, in copies of the weights.
Each measurement has a process of its own, on one CPU thread.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ausam import SAM, AUSampling, Feedback, Plain, SelectiveBatchSampler, SharpnessAware
from ausam.common.random import generator

BATCH = 128
TABLE = 12  # bytes per sample of the scores
FED_BACK = 1 << 15  # samples at a time: batch by batch would take longer than everything else
WORLD, EXCHANGES = 2, 5
WIDTHS, STEPS = (1500, 3000), 3
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # larger blocks are mapped, and unmapped when freed: a step's own peak


@dataclass(frozen=True)
class Planning:
    """The cost of planning one epoch."""

    samples: int
    build_seconds: float
    first_batch_seconds: float
    nanoseconds_per_sample: float
    bytes_per_sample: float
    state_bytes: int


def planning(samples: int) -> Iterator[str]:
    """Time and memory of planning an epoch."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        p = pool.apply(measure, (samples,))
    yield (
        f"planning an epoch of {p.samples:,} samples: built in {p.build_seconds:.2f} s, first batch after "
        f"{p.first_batch_seconds:.2f} s, {p.nanoseconds_per_sample:.0f} ns per sample, "
        f"{p.bytes_per_sample:.1f} bytes per sample beyond the scores, {p.state_bytes:,} bytes to resume"
    )


def measure(samples: int) -> Planning:
    """Plan the second epoch of AUSampling batch by batch, with scores present and losses fed back as in training."""
    torch.set_num_threads(1)
    _epoch(SelectiveBatchSampler(1000, BATCH, AUSampling(0.5, ramp=30)))  # warm-up: one-time allocations
    before = resident(forget=True)
    start = time.perf_counter()
    sampler = SelectiveBatchSampler(samples, BATCH, AUSampling(0.5, ramp=30))
    build = time.perf_counter() - start
    first, seconds, state, peak = _epoch(sampler)
    held = (max(peak, resident()) - before) / samples - TABLE
    return Planning(samples, build, first, 1e9 * seconds / samples, held, state)


def _epoch(sampler: SelectiveBatchSampler) -> tuple[float, float, int, int]:
    """Seconds until the first batch, and for all; bytes of a mid-epoch state without the scores; peak before it.

    The copy of the scores in a state is not part of planning, nor is the time of feeding back.
    """
    scores = sampler.scores
    scores.sum.uniform_(generator=generator(1))
    scores.count.fill_(1)
    sampler.set_epoch(1)
    half, state, other, first, peak = len(sampler) // 2, 0, 0.0, 0.0, 0
    consumed: list[int] = []
    start = time.perf_counter()
    for number, index in enumerate(sampler):
        if number == 0:
            first = time.perf_counter() - start
        consumed += index
        if number == half or len(consumed) >= FED_BACK:
            before = time.perf_counter()
            _feed_back(sampler, consumed)
            consumed = []
            if number == half:
                peak = resident()
                state = _saved(sampler)
                resident(forget=True)
            other += time.perf_counter() - before
    return first, time.perf_counter() - start - other, state, peak


def _feed_back(sampler: SelectiveBatchSampler, index: list[int]) -> None:
    """Feed back the losses of consumed samples: without them the sampler keeps its plan, in case it is saved."""
    loss = torch.ones(len(index))
    sampler.update(Feedback(torch.tensor(index), loss, loss + 0.1))


def _saved(sampler: SelectiveBatchSampler) -> int:
    state = sampler.state_dict()
    del state["scores"]
    file = io.BytesIO()
    torch.save(state, file)
    return len(file.getvalue())


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
