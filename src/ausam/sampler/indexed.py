"""A dataset whose samples end with their own index."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset, IterableDataset


class Indexed(Dataset[Any]):
    """A dataset with the index of each sample added, so that a loss can be credited to its sample.

    A tuple or list ``(x, y)`` becomes ``(x, y, index)``, a dict gets the key ``"index"``, anything else ``x`` becomes
    ``(x, index)``.

    >>> from ausam import Indexed
    >>> Indexed([("a", 0), ("b", 1)])[1]
    ('b', 1, 1)

    Arguments:
        dataset: any dataset with ``__getitem__`` and ``__len__``. Wrap a Subset, not the dataset inside it: the index
            counts what the sampler counts.
        key: name of the index in samples that are dicts.
    """

    def __init__(self, dataset: Any, key: str = "index") -> None:
        indexable = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if isinstance(dataset, IterableDataset) or not indexable:
            raise no_random_access(dataset)
        if isinstance(dataset, Indexed):
            raise TypeError("The dataset is already Indexed: its samples would carry two indices. Wrap it once.")
        self.dataset = dataset
        self.key = key

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self._with_index(self.dataset[index], index)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        # DataLoader fetches a whole batch at once from a dataset that has __getitems__.
        if indices and isinstance(indices[0], list):
            raise TypeError(
                "An index is itself a list of indices: a batch sampler was passed as DataLoader(sampler=...). Write "
                "DataLoader(dataset, batch_sampler=sampler), without batch_size, shuffle and drop_last."
            )
        if indices and max(indices) >= len(self.dataset):
            raise IndexError(
                f"Sample {max(indices)} is asked for, but the dataset has {len(self.dataset)} samples now. If it has "
                "shrunk, build a new SelectiveBatchSampler for it."
            )
        if hasattr(self.dataset, "__getitems__"):
            samples = self.dataset.__getitems__(indices)
        else:
            samples = [self.dataset[i] for i in indices]
        return [self._with_index(s, i) for s, i in zip(samples, indices, strict=True)]

    def _with_index(self, sample: Any, index: int) -> Any:
        if isinstance(sample, dict):
            if self.key in sample:
                raise ValueError(
                    f'The samples already have a key "{self.key}". Choose another: Indexed(dataset, key="...").'
                )
            return {**sample, self.key: index}
        if isinstance(sample, (tuple, list)):
            return (*sample, index)
        return sample, index


def no_random_access(dataset: Any) -> TypeError:
    """What to say of a dataset that can only be iterated over."""
    return TypeError(
        f"{type(dataset).__name__} has no random access, so no sample can be left out before loading. "
        "Use SelectiveStream(source, decode, sampler) to choose before decoding, or sampler.pick(index) to "
        "choose inside a loaded batch."
    )
