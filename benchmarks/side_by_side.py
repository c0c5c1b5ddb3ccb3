"""Side-by-side measurement: on a shared machine, only ratios within one run are meaningful."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from ausam_lab.training.machine import environment, keep_freed_memory


def conditions() -> None:
    """Print the command and its conditions, in one thread.

    glibc maps and unmaps large activations, which costs the whole batch a third of its time and the half batch nothing.
    ``ausam`` keeps freed memory, and so do the benchmarks.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    here = environment("cpu")
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    versions = ", ".join(f"{name} {here.versions[name]}" for name in ("ausam", "torch", "python", "system"))
    print(f"# python {' '.join(sys.argv)}")
    print(
        f"# one thread, freed memory kept; {here.hardware.cpu}, {here.hardware.cores} cores{load}; {versions}",
        flush=True,
    )


def interleaved(tasks: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 2) -> dict[str, list[float]]:
    """Seconds of each task, ``repeats`` times; tasks take turns in a rotating order, and warm-up is not counted."""
    return {name: wall for name, (wall, _) in on_both_clocks(tasks, repeats, warmup).items()}


def on_both_clocks(
    tasks: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 2
) -> dict[str, tuple[list[float], list[float]]]:
    """The same, as seconds that went by and seconds of the processor."""
    names = list(tasks)
    wall: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warmup, repeats):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start, cpu_start = time.perf_counter(), time.process_time()
            tasks[name]()
            spent, cpu_spent = time.perf_counter() - start, time.process_time() - cpu_start
            if turn >= 0:
                wall[name].append(spent)
                cpu[name].append(cpu_spent)
    return {name: (wall[name], cpu[name]) for name in names}


def median_ratio(a: list[float], b: list[float]) -> float:
    """How many times longer ``a`` took than ``b``, by their medians."""
    return statistics.median(a) / statistics.median(b)


def ratios(
    where: str, tasks: Mapping[str, Callable[[], object]], pairs: Iterable[tuple[str, str]], repeats: int
) -> Iterator[str]:
    """A line for each pair: how many times longer the first took than the second, by both clocks."""
    taken = on_both_clocks(tasks, repeats)
    for a, b in pairs:
        (wall, cpu), (other_wall, other_cpu) = taken[a], taken[b]
        what = f"{a} to {b}, {where}"
        yield f"{what:<72} wall {median_ratio(wall, other_wall):5.2f}  CPU {median_ratio(cpu, other_cpu):5.2f}"
