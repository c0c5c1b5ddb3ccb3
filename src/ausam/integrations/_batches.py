"""Shared by the adapters: a sampler's batches for a framework that counts batches itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

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
        self.total = 0  # batches of the current pass
        self.resumed = 0  # batches that were used before the interruption, if the pass is resumed

    def __iter__(self) -> Iterator[list[int]]:
        self.selective.exchange()
        self.total, self.done, self.resumed = len(self), self.resumed, 0
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
        state = exchanged_state(self.selective)
        return {"sampler": state, "done": 0 if state["plan"] is None else self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the state was saved."""
        self.selective.load_state_dict(state["sampler"])
        self.resumed = state["done"]


def exchanged_state(sampler: SelectiveBatchSampler) -> dict[str, Any]:
    """The sampler's state with the scores of all processes. Collective: all processes call it."""
    if sampler.has_unshared_scores:
        sampler.exchange()
    return sampler.state_dict()


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


class NumberedCollator:
    """Wraps a collator that makes dicts, so that it takes pairs of a sample and its index."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, pairs: list[tuple[Any, int]]) -> Any:
        batch = self.collate([sample for sample, _ in pairs])
        batch[INDEX] = torch.tensor([index for _, index in pairs])
        return batch
