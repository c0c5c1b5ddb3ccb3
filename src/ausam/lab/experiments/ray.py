"""The cells of a table on a Ray cluster; the folder of results is all that its machines share."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ausam.lab.experiments.recipe import Cell
from ausam.lab.experiments.reproduce import Failed, Launch, OnEpoch, Outcome, attempt
from ausam.lab.training import folder
from ausam.lab.training.logs import Logs

STORE = 80_000_000  # bytes: nothing of size passes through Ray, and less it does not take


@contextlib.contextmanager
def on_ray(address: str | None, cpus: float, gpus: float) -> Iterator[Launch]:
    """Launch cells as tasks of a Ray cluster, each with so many CPUs and GPUs.

    ``address`` is that of a running cluster, or "auto" for the one this machine belongs to; None starts one on this
    machine that ends with the command.
    """
    if find_spec("ray") is None:
        raise ValueError('--launcher ray needs the package ray, which is not installed: pip install "ausam[ray]"')
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    own = {"include_dashboard": False, "object_store_memory": STORE} if address is None else {}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address or "local", logging_level=logging.ERROR, **own)
    except ConnectionError as error:
        raise ValueError(
            f"There is no Ray cluster at --address {address}. Leave --address out, and one is started here."
        ) from error
    signal.signal(signal.SIGTERM, before)  # Ray sets one of its own
    try:
        there = ray.cluster_resources()
        for name, needed in (("CPU", cpus), ("GPU", gpus)):
            if needed > (most := there.get(name, 0)):
                raise ValueError(f"A cell is to have {needed:g} {name}s, but all of the Ray cluster has {most:g}.")
        task = ray.remote(num_cpus=cpus, num_gpus=gpus)(_cell)
        yield lambda cells, out, on_epoch, logs: _launched(ray, task, cells, out, on_epoch, logs)
    finally:
        ray.shutdown()


def _launched(
    ray: Any, task: Any, cells: Iterable[Cell], out: Path, on_epoch: OnEpoch, logs: Logs
) -> Iterator[tuple[Cell, Outcome]]:
    """Each cell and what came out of it, in the order in which they end; ``on_epoch`` is called from their files."""
    running = {task.remote(cell, out, logs, os.getcwd()): cell for cell in cells}
    told = {cell.id: len(folder.epochs(cell.folder(out))) for cell in running.values()}
    try:
        while running:
            ended, _ = ray.wait(list(running), timeout=1.0)
            for cell in running.values():
                epochs = folder.epochs(cell.folder(out))
                for epoch in epochs[told[cell.id] :]:
                    on_epoch(cell.id, epoch)
                told[cell.id] = len(epochs)
            for reference in ended:
                yield running.pop(reference), _outcome(ray, reference)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def _outcome(ray: Any, reference: Any) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None  # only what concerns all cells: see attempt
    except ray.exceptions.RayError as error:
        return Failed(f"its process was lost: {error}", no_data=False)
    return outcome


def _cell(cell: Cell, out: Path, logs: Logs, directory: str) -> Outcome:
    """One cell, in a process of Ray's, and in the folder in which the command was given: paths are meant from there."""
    os.chdir(directory)
    return attempt(cell, out, lambda *_: None, logs)
