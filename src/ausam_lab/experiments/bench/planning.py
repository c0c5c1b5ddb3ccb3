"""The cost of planning an epoch, with a separate process for each size."""

from __future__ import annotations

import io
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ausam import AUSampling, Feedback, SelectiveBatchSampler
from ausam.common.random import generator
from ausam_lab.experiments.bench.peak import resident
from ausam_lab.experiments.side_by_side import OnTurn

BATCH = 128
TABLE = 12  # bytes per sample of the scores
FED_BACK = 1 << 15  # samples at a time: batch by batch would take longer than everything else
SIZES = (10_000_000, 100_000_000)


@dataclass(frozen=True)
class Planning:
    """The cost of planning one epoch."""

    samples: int
    build_seconds: float
    first_batch_seconds: float
    nanoseconds_per_sample: float
    bytes_per_sample: float
    state_bytes: int


def planning(repeats: int, on_turn: OnTurn, sizes: tuple[int, ...] = SIZES) -> Iterator[str]:  # noqa: ARG001  (once)
    """Time and memory of planning an epoch of ten million and of a hundred million samples."""
    for i, samples in enumerate(sizes):
        on_turn(f"planning {samples:,} samples", i, len(sizes))
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
