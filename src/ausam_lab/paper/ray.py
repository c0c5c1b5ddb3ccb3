"""Run the cells of a table on a Ray cluster, whose machines share only the folder of results."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ausam_lab.experiments.cells import Cell
from ausam_lab.experiments.run_cells import Failed, Launch, OnEpoch, Outcome, attempt
from ausam_lab.paper import catalogue
from ausam_lab.training import run_folder

STORE = 80_000_000  # bytes, the smallest that Ray accepts: nothing large passes through it


@contextlib.contextmanager
def on_ray(address: str | None, cpus: float, gpus: float) -> Iterator[Launch]:
    """Launch cells as tasks of a Ray cluster, each with the given number of CPUs and GPUs.

    ``address`` is that of a running cluster, or "auto" for the cluster of this machine. None starts one on this machine
    that ends with the command.
    """
    if find_spec("ray") is None:
        raise ValueError("--launcher ray needs the package ray. Install it: pip install ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    own = {"include_dashboard": False, "object_store_memory": STORE} if address is None else {}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address or "local", logging_level=logging.ERROR, **own)
    except ConnectionError as error:
        raise ValueError(
            f"There is no Ray cluster at --address {address}. Leave out --address to start one here."
        ) from error
    signal.signal(signal.SIGTERM, before)  # Ray installs its own handler
    try:
        there = ray.cluster_resources()
        for name, needed in (("CPU", cpus), ("GPU", gpus)):
            if needed > (most := there.get(name, 0)):
                raise ValueError(f"A cell needs {needed:g} {name}s, but the whole Ray cluster has {most:g}.")
        task = ray.remote(num_cpus=cpus, num_gpus=gpus)(_cell)
        yield lambda cells, out, on_epoch: _launched(ray, task, cells, out, on_epoch)
    finally:
        ray.shutdown()


def _launched(
    ray: Any, task: Any, cells: Iterable[Cell], out: Path, on_epoch: OnEpoch
) -> Iterator[tuple[Cell, Outcome]]:
    """Each cell with its outcome, in the order in which they finish. ``on_epoch`` follows their files."""
    running = {task.remote(cell, out, os.getcwd()): cell for cell in cells}
    reported = {cell.id: len(run_folder.epochs(cell.folder(out))) for cell in running.values()}
    try:
        while running:
            ended, _ = ray.wait(list(running), timeout=1.0)
            for cell in running.values():
                epochs = run_folder.epochs(cell.folder(out))
                for epoch in epochs[reported[cell.id] :]:
                    on_epoch(cell.id, epoch)
                reported[cell.id] = len(epochs)
            for reference in ended:
                yield running.pop(reference), _outcome(ray, reference)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def _outcome(ray: Any, reference: Any) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None  # an error that concerns all cells: see attempt
    except ray.exceptions.RayError as error:
        return Failed(f"its process was lost: {error}", no_data=False)
    return outcome


def _cell(cell: Cell, out: Path, directory: str) -> Outcome:
    """Run one cell in a Ray process, in the folder where the command was given, because paths are relative to it."""
    catalogue.register()
    os.chdir(directory)
    return attempt(cell, out, lambda *_: None)
