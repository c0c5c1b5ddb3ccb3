"""Loading of samples in this process or in workers. Errors name the sample that cannot be read."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

from ausam.sampler.indexed import Indexed
from ausam_lab.records.files import RunError


class DataError(RunError):
    """A dataset failed to return a sample, or a process that loads samples died."""


def sample(dataset: Any, index: int, what: str) -> Any:
    """``dataset[index]``. Errors name the sample by its number in the innermost dataset."""
    try:
        return dataset[index]
    except Exception as error:
        while isinstance(dataset, Indexed | Subset):
            index = dataset.indices[index] if isinstance(dataset, Subset) else index
            dataset = dataset.dataset
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise DataError(
            f"Sample {index} of {what} cannot be read: {type(error).__name__}: {error} ({frame.filename}, line "
            f"{frame.lineno}). Repair it, or remove it from the dataset."
        ) from error


def load_batches(
    dataset: Any, workers: int, device: str, rng: torch.Generator, what: str = "the data", **how: Any
) -> Iterator[Any]:
    """The batches of a DataLoader over samples that end with their index. A DataError names a failing sample."""
    loader: DataLoader[Any] = DataLoader(
        _Named(dataset, what),
        num_workers=workers,
        pin_memory=device.startswith("cuda"),
        generator=rng,
        collate_fn=_collate,
        **how,
    )
    try:
        yield from loader
    except DataError as error:  # from a worker it comes inside a traceback
        raise DataError(str(error).rpartition("DataError: ")[2].strip()) from error
    except (RuntimeError, OSError, EOFError) as error:
        if not workers:
            raise
        raise worker_died(error) from error


def worker_died(report: BaseException) -> DataError:
    """The error of a process that loaded samples and died. Torch may also report it wherever the program is."""
    return DataError(
        f"A data-loading process died: {report}. Usually the system killed it because memory ran out: use fewer "
        "--workers. With --workers 0, a dataset that crashes shows its error."
    )


class _Named(Dataset[Any]):
    """Gives a batch of a dataset, or an error that names the sample."""

    def __init__(self, dataset: Any, what: str) -> None:
        self.dataset, self.what = dataset, what

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        try:  # a dataset may read a whole batch at once
            return list(self.dataset.__getitems__(indices))
        except Exception:  # noqa: BLE001  (it cannot, or a sample fails: which?)
            return [sample(self.dataset, index, self.what) for index in indices]


def _collate(samples: list[Any]) -> Any:
    """A batch of these samples."""
    try:
        return default_collate(samples)
    except (TypeError, RuntimeError) as error:
        shapes = {tuple(getattr(one[0], "shape", ())): one[-1] for one in samples}
        seen = ", ".join(f"sample {index} of shape {shape}" for shape, index in sorted(shapes.items()))
        why = seen if len(shapes) > 1 else str(error)
        raise DataError(
            f"Samples cannot be stacked into a batch: {why}. Return x with one shape and one type."
        ) from error
