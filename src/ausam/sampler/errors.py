"""The mistakes that users of the sampler make: errors and warnings that say what to write."""

from __future__ import annotations

import warnings
from collections.abc import Sized
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Sampler

from ausam.common.settings import POSITIVE_COUNT, checked_value
from ausam.common.tensors import CPU
from ausam.feedback import Feedback
from ausam.policies.base import Policy
from ausam.policies.signals import AT_PERTURBED_WEIGHTS, signal_name
from ausam.sampler.indexed import Indexed, no_random_access

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores

OWNER = "SelectiveBatchSampler"


def dataset_length(dataset: Sized | int) -> int:
    """The number of samples."""
    if isinstance(dataset, DataLoader):
        raise TypeError(
            "A DataLoader counts batches, but the sampler chooses samples. Pass the dataset: "
            "SelectiveBatchSampler(dataset, ...), and then DataLoader(dataset, batch_sampler=sampler)."
        )
    if isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not hasattr(dataset, "__len__")):
        raise no_random_access(dataset)
    parts = dataset.datasets if isinstance(dataset, ConcatDataset) else [getattr(dataset, "dataset", None)]
    if any(isinstance(part, Indexed) for part in parts):  # inside a Subset or a ConcatDataset
        name = type(dataset).__name__
        raise TypeError(
            f"Indexed is inside {name}, so it numbers other samples than the sampler. Swap the two: "
            f"Indexed({name}(...))."
        )
    n = len(dataset) if isinstance(dataset, Sized) else dataset
    number: int = checked_value(OWNER, "dataset", n, POSITIVE_COUNT)
    return number


def feedback_index(feedback: Any) -> Tensor:
    """The index of a feedback, or an error that says what to pass."""
    if not isinstance(feedback, Feedback):
        raise TypeError(
            f"update takes the Feedback that opt.backward returns, not a {type(feedback).__name__}. Write "
            "sampler.update(opt.backward(loss_fn, *batch, index=index)), or Feedback(index, loss, perturbed) by hand."
        )
    if feedback.index is None:
        raise ValueError(
            "The feedback has no index. Pass it: opt.backward(loss_fn, *batch, index=index). The index comes with the "
            "batch: for x, y, index in DataLoader(Indexed(dataset), batch_sampler=sampler)."
        )
    return feedback.index


def dataset_index(index: Any, n: int) -> Tensor:
    """Dataset indices of one batch as whole numbers on the CPU. Lists and arrays will do."""
    index = index if isinstance(index, Tensor) else torch.as_tensor(index, device=CPU)
    if index.dim() != 1:
        raise ValueError(f"index has shape {tuple(index.shape)}. Pass the dataset indices of one batch, shape (n,).")
    if len(index) and (index.is_floating_point() or index.dtype == torch.bool):
        raise TypeError(
            f"index has type {index.dtype}, but dataset indices are whole numbers, and a float32 holds them up to 2^24 "
            "only. Pass the index as it comes from Indexed(dataset)."
        )
    vector: Tensor = index.to(CPU, torch.int64)
    outside = (vector < 0) | (vector >= n)
    if bool(outside.any()):
        raise ValueError(
            f"index {int(vector[outside][0])} is outside the dataset of {n} samples. Use the index of "
            f"Indexed(dataset), from 0 to {n - 1}, for the same dataset that the sampler was built with."
        )
    return vector


def checked_ranks(rank: int | None, world_size: int | None) -> tuple[int | None, int | None]:
    """Rank and number of processes as given. An error if one is missing, or if they contradict each other."""
    if (rank is None) != (world_size is None):
        raise ValueError(
            f"rank is {rank} and world_size is {world_size}. Pass both, or neither to use torch.distributed's."
        )
    if rank is not None and world_size is not None and not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}, but with world_size {world_size} it must be from 0 to {world_size - 1}.")
    return rank, world_size


def refuse_rebuilding(*args: Any, **kwargs: Any) -> None:
    """Raise a TypeError if a sampler is passed as the dataset: a framework is rebuilding our sampler."""
    if any(isinstance(given, Sampler) for given in (*args[:1], kwargs.get("dataset"))):
        raise TypeError(
            "A framework tried to rebuild the SelectiveBatchSampler around its own sampler, so the one that you update "
            "would no longer be in use. SelectiveBatchSampler already divides the batches among the processes. With "
            "Lightning, use Trainer(use_distributed_sampler=False) or ausam.integrations.lightning.SelectiveLoader."
        )


def warn_if_unscored(policy: Policy, scores: Scores, epoch: int) -> None:
    """Warn if a policy has to choose but no value has arrived. Of "progress", the first value is no score yet."""
    if epoch > 0 and policy.reads_scores and not scores.known and bool(scores.last.isnan().all()):
        perturbed = signal_name(policy.signal) in AT_PERTURBED_WEIGHTS
        method = ", with a method that evaluates the loss at perturbed weights" if perturbed else ""
        warnings.warn(
            f"No score has reached the sampler before epoch {epoch}: {type(policy).__name__} has nothing to choose by. "
            f"Call sampler.update(opt.backward(..., index=index)) in each step{method}. If you have only looked at "
            "some batches, call sampler.set_epoch(0) before training: every pass counts as an epoch.",
            stacklevel=3,
        )


def warn_that_unused(policy: Policy, n: int) -> None:
    """Warn that a sampler of n samples is updated but never iterated over, so that nothing is selected."""
    warnings.warn(
        f"sampler.update has received the losses of more than a whole pass ({n} samples), but the sampler was never "
        "iterated over and sampler.pick was never called. Training uses every sample, and "
        f"{type(policy).__name__} selects nothing. Use DataLoader(dataset, batch_sampler=sampler), or train on the "
        "rows keep = sampler.pick(index).",
        stacklevel=3,
    )


def warn_of_positions(index: Tensor, given: Tensor) -> None:
    """Warn if a pass begins with feedback on samples that the sampler did not give."""
    if set(index.tolist()) - set(given.tolist()):  # the same words each time, so that Python shows them once
        warnings.warn(
            "The first update of this pass is of samples that the sampler has not given yet. The index is the last "
            "value of a batch of Indexed(dataset): for x, y, index in loader. It does not count the rows of the batch, "
            "torch.arange(len(x)), and it is not the label.",
            stacklevel=4,
        )


def warn_that_unweighted(policy: Policy) -> None:
    """Warn that a policy weights the samples that it keeps, and that the weights are never read."""
    warnings.warn(
        f"{type(policy).__name__} weights the samples that it keeps, but sampler.weight was never called. Pass "
        "opt.backward(..., weight=sampler.weight(index)), or the gradient is biased. This warning is shown once.",
        stacklevel=4,
    )
