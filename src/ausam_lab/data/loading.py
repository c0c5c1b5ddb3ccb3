"""Loading of samples in this process or in workers; errors name the sample that cannot be read."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Subset, default_collate, get_worker_info

from ausam.sampler.indexed import Indexed

NOTICED = 5.0  # seconds in which the system reports a dead worker, however busy it is; the report ends the wait


class DataError(RuntimeError):
    """A dataset failed to return a sample."""


def sample(dataset: Any, index: int, what: str) -> Any:
    """``dataset[index]``; errors name the sample by its number in the innermost dataset."""
    try:
        return dataset[index]
    except Exception as error:
        while isinstance(dataset, Indexed | Subset):
            index = dataset.indices[index] if isinstance(dataset, Subset) else index
            dataset = dataset.dataset
        frame = traceback.extract_tb(error.__traceback__)[-1]
        worker = get_worker_info()
        where = f"{frame.filename}, line {frame.lineno}" + (f", in worker {worker.id}" if worker else "")
        raise DataError(
            f"Sample {index} of {what} cannot be read: {type(error).__name__}: {error} ({where}). Repair it, or remove "
            "it from the dataset."
        ) from error


def load_batches(
    dataset: Any, workers: int, device: str, rng: torch.Generator, what: str = "the data", **how: Any
) -> Iterator[Any]:
    """The batches of a DataLoader over samples that end with their index; a DataError names a failing sample."""
    loader: DataLoader[Any] = DataLoader(
        _Carried(dataset, what),
        num_workers=workers,
        pin_memory=device.startswith("cuda"),
        generator=rng,
        collate_fn=_together,
        **how,
    )
    try:
        for batch in loader:
            if isinstance(batch, DataError):
                raise batch
            yield batch
    except (ConnectionError, EOFError):
        # A worker that dies while it hands over a batch first shows as a broken connection. A moment later DataLoader's
        # signal handler says what happened, wherever the program is by then: let it be here. We ask as well, because
        # another library (Lightning) may have removed that handler.
        end = time.monotonic() + NOTICED
        while workers and time.monotonic() < end:
            torch._C._error_if_any_worker_fails()
            time.sleep(0.05)
        raise


class _Carried(Dataset[Any]):
    """Returns an error in place of a failing sample: raised in a worker, it would arrive inside a traceback."""

    def __init__(self, dataset: Any, what: str) -> None:
        self.dataset, self.what = dataset, what

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        # DataLoader fetches a whole batch from a dataset that has __getitems__, so pass the call on.
        if hasattr(self.dataset, "__getitems__"):
            try:
                return list(self.dataset.__getitems__(indices))
            except Exception:  # noqa: BLE001, S110  (asked one by one, the sample that fails can be named)
                pass
        try:
            return [sample(self.dataset, index, self.what) for index in indices]
        except DataError as error:
            return [error]


def _together(samples: list[Any]) -> Any:
    """A batch of these samples, or a DataError in place of it."""
    if isinstance(samples[0], DataError):
        return samples[0]
    try:
        return default_collate(samples)
    except (TypeError, RuntimeError) as error:
        # torch's message differs between a worker and the training process, and does not name the sample
        shapes = {tuple(getattr(sample[0], "shape", ())): sample[-1] for sample in samples}
        seen = ", ".join(f"sample {index} of shape {shape}" for shape, index in sorted(shapes.items()))
        why = seen if len(shapes) > 1 else str(error)
        return DataError(f"Samples cannot be stacked into a batch: {why}. Return x with one shape and one type.")
