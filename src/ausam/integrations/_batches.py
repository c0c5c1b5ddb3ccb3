"""A sampler's batches for frameworks that count, save and collate batches themselves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, default_collate

from ausam.feedback import Feedback
from ausam.sampler import Indexed, SelectiveBatchSampler

INDEX = "ausam_index"  # in a batch that is a dict


class Batches(Sampler[list[int]]):
    """The batches of a SelectiveBatchSampler, with a count of those used in the current pass.

    It has no ``set_epoch``: a framework that called it with its own epoch would discard a pass to be resumed.
    """

    def __init__(self, selective: SelectiveBatchSampler) -> None:
        self.selective = selective
        self.done = 0  # used batches of the current pass
        self.resumed = 0  # batches that were used before the interruption, if the pass is resumed

    def __iter__(self) -> Iterator[list[int]]:
        self.selective.exchange()
        self.done, self.resumed = self.resumed, 0
        yield from self.selective

    def __len__(self) -> int:
        return self.resumed + len(self.selective)

    def fits(self, batch_size: int, samples: int) -> bool:
        """Whether the sampler has this mini-batch size and dataset size."""
        return self.selective.mini_batch == batch_size and len(self.selective.scores) == samples

    def update(self, feedback: Feedback) -> None:
        """Take the feedback of one batch."""
        self.selective.update(feedback)
        self.done += 1

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state and the position in its pass. Collective: all processes call it."""
        self.selective.exchange()
        state = self.selective.state_dict()
        return {"sampler": state, "done": 0 if state["plan"] is None else self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the state was saved."""
        self.selective.load_state_dict(state["sampler"])
        self.resumed = state["done"]


def mean_loss(feedback: Feedback) -> Tensor:
    """The mean loss to log: at ``w``, or at ``w + e`` for samples that were evaluated only there."""
    return torch.where(feedback.loss.isnan(), feedback.perturbed, feedback.loss).nanmean()


class Placeholders(Batches):
    """For a framework that skips used batches itself: an empty batch stands for each of them."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from [[]] * self.resumed
        yield from super().__iter__()


class Numbered(Indexed):
    """A dataset of pairs: a sample of any kind, and its index."""

    def _with_index(self, sample: Any, index: int) -> Any:
        return sample, index


def collate_pair(collate: Callable[[list[Any]], Any], pairs: list[tuple[Any, int]]) -> tuple[Any, Tensor]:
    """The batch of pairs of a sample and its index, and the indices."""
    return collate([sample for sample, _ in pairs]), torch.tensor([index for _, index in pairs])


def collate_dict(collate: Callable[[list[Any]], Any], pairs: list[tuple[Any, int]]) -> Any:
    """The same for a collator that makes dicts: the indices are one of the entries."""
    batch, index = collate_pair(collate, pairs)
    return {**batch, INDEX: index}


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
        collate = partial(collate_pair, kwargs.pop("collate_fn", default_collate))
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
        """The dataset indices of the oldest batch that was not taken yet. Later ones may have been prefetched."""
        return self._indices.popleft()

    def __len__(self) -> int:
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Scores and position. Lightning calls this when it saves a checkpoint."""
        return self.batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the state was saved."""
        self.batches.load_state_dict(state)
