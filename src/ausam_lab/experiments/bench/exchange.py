"""The cost of exchanging an epoch's scores between two processes."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from ausam.sampler.scores import SharedScores
from ausam_lab.experiments.bench.peak import resident
from ausam_lab.experiments.side_by_side import OnTurn

WORLD = 2
SIZES = (1_000_000, 10_000_000)


def exchange(repeats: int, on_turn: OnTurn, sizes: tuple[int, ...] = SIZES) -> Iterator[str]:
    """Time and memory of exchanging one new loss of each of a million and of ten million samples."""
    for i, samples in enumerate(sizes):
        on_turn(f"exchange of {samples:,} scores", i, len(sizes))
        seconds, held = measure(samples, min(repeats, 5))
        yield (
            f"exchange of {samples:,} scores between {WORLD} processes: {seconds:.2f} s, "
            f"{1e9 * seconds / samples:.0f} ns and {held:.0f} bytes per sample beyond the scores"
        )


def measure(samples: int, repeats: int) -> tuple[float, float]:
    """Median seconds of the slower process, and bytes per sample of the larger one."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        with multiprocessing.get_context("spawn").Pool(WORLD) as pool:
            figures = pool.starmap(one_process, [(rank, store, samples, repeats) for rank in range(WORLD)], chunksize=1)
    slower = [max(of_ranks) for of_ranks in zip(*(seconds for seconds, _ in figures), strict=True)]
    return statistics.median(slower), max(held for _, held in figures) / samples


def one_process(rank: int, store: Path, samples: int, repeats: int) -> tuple[list[float], int]:
    """What one process sees: seconds of each exchange, and the most memory that one took."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store.as_uri(), rank=rank, world_size=WORLD)
    try:
        scores = SharedScores(samples, None, None)
        mine = torch.arange(rank, samples, WORLD)
        seconds, held = [], 0
        for _ in range(repeats):
            scores.add(mine, torch.rand(len(mine)))
            before = resident(forget=True)
            dist.barrier()
            start = time.perf_counter()
            scores.exchange((0, 0))
            seconds.append(time.perf_counter() - start)
            held = max(held, resident() - before)
        return seconds, held
    finally:
        dist.destroy_process_group()
