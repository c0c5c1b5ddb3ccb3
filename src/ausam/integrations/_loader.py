"""A loader that Lightning saves, restores and otherwise leaves alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from ausam.integrations._batches import Batches, Numbered
from ausam.sampler import SelectiveBatchSampler


class SelectiveLoader:
    """A loader for the batches that a SelectiveBatchSampler chooses, saved and restored with Lightning's checkpoints.

    It is not a DataLoader: with several devices Lightning would replace the sampler of a DataLoader, and the scores
    would go to the old one. Batches are as ``DataLoader(dataset)`` collates them. The index of each sample is kept
    separately, so hooks see ordinary batches.

    Arguments:
        dataset: the dataset itself, not ``Indexed``.
        sampler: a sampler for this dataset. A policy that chooses for a whole epoch (``InfoBatch``) makes later epochs
            shorter and needs ``Trainer(reload_dataloaders_every_n_epochs=1)``.
        kwargs: arguments of the DataLoader: ``num_workers``, ``collate_fn``, ...
    """

    def __init__(self, dataset: Any, sampler: SelectiveBatchSampler, **kwargs: Any) -> None:
        collate = partial(_collate, kwargs.pop("collate_fn", default_collate))
        self.batches = Batches(sampler)
        self.loader: DataLoader[Any] = DataLoader(
            Numbered(dataset), batch_sampler=self.batches, collate_fn=collate, **kwargs
        )
        self._indices: deque[Tensor] = deque()

    def __iter__(self) -> Iterator[Any]:
        # A generator: Lightning asks for an iterator before it restores a checkpoint, and workers would start at once.
        self._indices.clear()
        for batch, index in self.loader:
            self._indices.append(index)
            yield batch

    def take_index(self) -> Tensor:
        """The dataset indices of the oldest batch not asked about yet; later ones may have been prefetched."""
        return self._indices.popleft()

    def __len__(self) -> int:
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Scores and position. Lightning calls this when it saves a checkpoint."""
        return self.batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the state was saved."""
        self.batches.load_state_dict(state)


def _collate(collate: Callable[[list[Any]], Any], pairs: list[tuple[Any, int]]) -> tuple[Any, Tensor]:
    return collate([sample for sample, _ in pairs]), torch.tensor([index for _, index in pairs])
