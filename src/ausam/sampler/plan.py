"""The plan of an epoch: which samples are used and in which order, drawn when the epoch begins."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ausam.common.random import generator
from ausam.common.tensors import CPU
from ausam.policies.base import Policy

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores

# Purposes of random numbers, part of a generator's key: the order of an epoch, a pick, the policy's draws, the
# order in which a policy of scope "epoch" gets the candidates, a mini-batch of a stream.
ORDER, PICK, CHOICE, CANDIDATES, STREAM = range(5)

# Approximate number of candidates that a policy of scope "batch" gets at a time. Bounds the memory of planning.
CHUNK = 1 << 16


@dataclass(frozen=True)
class Plan:
    """The samples of an epoch in the order of use, or the rest of them. All processes share one plan.

    Arguments:
        epoch: number of the epoch.
        index: dataset index of each sample, four bytes each.
        kept: samples per mini-batch. The last may have fewer.
        weight: factor of the loss of every sample of the dataset, or None.
        done: number of samples of the epoch before these.
    """

    epoch: int
    index: Tensor
    kept: int
    weight: Tensor | None = None
    done: int = 0

    def split(self, world_size: int, min_batch: int) -> range:
        """Where the batches begin, for so many processes. Raises if there are too few samples."""
        what = f"{len(self.index)} samples {'are left of' if self.done else 'are chosen for'} epoch {self.epoch}"
        return batch_starts(len(self.index), self.kept, world_size, min_batch, what)


@dataclass(frozen=True)
class EpochChoice:
    """The samples that a policy of scope "epoch" uses in one epoch, or in several.

    Arguments:
        number: number of the choice: -1 in the first epoch, then one per period.
        index: dataset index of each sample that is used, ascending.
        weight: factor of the loss of every sample of the dataset, or None.
    """

    number: int
    index: Tensor
    weight: Tensor | None


def plan_batches(policy: Policy, scores: Scores, epoch: int, seed: int, size: int, *, drop_last: bool) -> Plan:
    """Shuffle, split into mini-batches and let a policy of scope "batch" choose inside each."""
    n = len(scores)
    order = torch.randperm(n, generator=generator(seed, epoch, ORDER), dtype=torch.int32, device=CPU)
    rng = generator(seed, epoch, CHOICE)
    whole = n // size * size
    mini_batches = list(torch.split(order[:whole].view(-1, size), max(1, CHUNK // size)))
    if whole < n and not drop_last:
        mini_batches.append(order[whole:].view(1, -1))
    chosen: list[Tensor] = []
    weight = None
    for candidates in map(Tensor.long, mini_batches):
        positions, factor = policy.choose(scores, epoch, candidates, rng)
        _check_count(policy, epoch, positions, candidates)
        index = candidates.gather(1, positions)
        chosen.append(index.flatten().int())
        if factor is not None:
            weight = put_weights(weight, n, index.flatten(), factor.flatten())
    return Plan(epoch, torch.cat(chosen), batch_count(policy, epoch, size), weight)


def choose_among_all(policy: Policy, scores: Scores, epoch: int, seed: int) -> EpochChoice:
    """Let a policy of scope "epoch" choose among all samples, which it gets in random order."""
    n = len(scores)
    candidates = torch.randperm(n, generator=generator(seed, policy.order_id(epoch), CANDIDATES), device=CPU)[None]
    positions, factor = policy.choose(scores, epoch, candidates, generator(seed, epoch, CHOICE))
    if policy.count(epoch, n) is not None:
        _check_count(policy, epoch, positions, candidates)
    index = torch.empty(positions.shape[1], dtype=torch.int32, device=CPU)
    for part, into in zip(torch.split(positions[0], CHUNK), torch.split(index, CHUNK), strict=True):
        into.copy_(candidates[0].index_select(0, part))  # in parts, to save memory
    del candidates, positions  # 16 bytes per sample
    weight = None if factor is None else put_weights(None, n, index, factor[0])
    # Ascending, so that a choice of all samples is shuffled as every full epoch is, whatever the policy.
    index.numpy().sort()
    return EpochChoice(choice_number(policy, epoch), index, weight)


def plan_choice(policy: Policy, choice: EpochChoice, epoch: int, seed: int, size: int, *, drop_last: bool) -> Plan:
    """Shuffle the samples that were chosen for the epoch. ``drop_last`` never drops the only batch."""
    samples, kept = len(choice.index), policy.size(size)
    order = torch.randperm(samples, generator=generator(seed, epoch, ORDER), dtype=torch.int32, device=CPU)
    index = choice.index.index_select(0, order[: samples_used(samples, kept, drop_last=drop_last)])
    return Plan(epoch, index, kept, choice.weight)


def choice_number(policy: Policy, epoch: int) -> int:
    """Number of the choice that an epoch uses."""
    return (epoch - 1) // policy.period


def batch_count(policy: Policy, epoch: int, n: int) -> int:
    """How many of a mini-batch of ``n`` samples a policy of scope "batch" keeps."""
    kept = policy.count(epoch, n)
    if kept is None:
        raise TypeError(
            f'{type(policy).__name__}: count(epoch, n) returned None, but a policy of scope "batch" must keep a fixed '
            "number of n candidates, whatever their scores. Return that number."
        )
    return kept


def samples_used(samples: int, kept: int, *, drop_last: bool) -> int:
    """How many of the chosen samples are in whole mini-batches. All of them if the only mini-batch is short."""
    return samples - samples % kept if drop_last and samples >= kept else samples


def put_weights(table: Tensor | None, n: int, index: Tensor, weight: Tensor) -> Tensor:
    """Set the factors of these samples in a table of ``n`` samples, which is made if there is none. 1 elsewhere."""
    if table is None:
        table = torch.ones(n, dtype=torch.float32, device=CPU)
    return table.scatter_(0, index.long(), weight.to(table.dtype))


def _check_count(policy: Policy, epoch: int, positions: Tensor, candidates: Tensor) -> None:
    n, kept = candidates.shape[1], positions.shape[1]
    if kept != policy.count(epoch, n):
        raise ValueError(
            f"{type(policy).__name__} kept {kept} of {n} candidates in epoch {epoch}, but its count({epoch}, {n}) is "
            f"{policy.count(epoch, n)}. The sampler computes the length of an epoch from count before it calls choose. "
            "Let choose return as many positions as count says."
        )


# -- batches ----------------------------------------------------------------------------------------------------------


def batch_starts(total: int, kept: int, world_size: int, min_batch: int, what: str) -> range:
    """Where each batch begins: mini-batches of ``kept`` samples, joined until there is ``min_batch`` for each process.

    A remainder joins the batch before it. Too few samples for one batch raise an error, which begins with ``what``.
    """
    least = world_size * min_batch
    if total < least:
        raise ValueError(
            f"{what}, but {least} are needed: min_batch={min_batch} for each of {world_size} processes. Use fewer "
            "processes or a smaller min_batch, let the policy keep more, or begin the next epoch with set_epoch."
        )
    step = kept * -(-least // kept)
    return range(0, step * (total // step + (total % step >= least)), step)


class EpochIterator:
    """Hands out one process's share of the batches of a plan, and counts what was consumed.

    Arguments:
        plan: the plan.
        rank: rank of this process.
        world_size: number of processes.
        min_batch: smallest batch in each process.
        updated: whether ``update`` was called before, so that consumed batches will be known.
    """

    def __init__(self, plan: Plan, rank: int, world_size: int, min_batch: int, *, updated: bool) -> None:
        self.plan = plan
        self.handed_out = 0  # samples, of all processes
        self.consumed = 0  # samples of this process, as update counts them
        self._rank, self._world_size, self._updated = rank, world_size, updated
        self._starts = plan.split(world_size, min_batch)

    def __iter__(self) -> Iterator[list[int]]:
        for start, stop in itertools.pairwise(itertools.chain(self._starts, [len(self.plan.index)])):
            self.handed_out = stop
            # Dealt in turn, so the shares of the processes differ by at most one.
            yield self.plan.index[start + self._rank : stop : self._world_size].tolist()

    @property
    def finished(self) -> bool:
        """Whether every batch was handed out."""
        return self.handed_out == len(self.plan.index)

    def rest(self) -> Plan | None:
        """The plan of what is not consumed yet. None at the end of the epoch."""
        # Loaders prefetch, so a batch that was handed out is not consumed yet. It counts if nobody calls update.
        done = self._completed() if self.consumed or self._updated else self.handed_out
        if done == len(self.plan.index):
            return None
        return replace(self.plan, index=self.plan.index[done:].clone(), done=self.plan.done + done)

    def _completed(self) -> int:
        """Samples of all processes in the batches of which this one has consumed its whole share."""
        share = len(range(self._rank, self._starts.step, self._world_size))
        last = len(self._starts) - 1
        done = min(self.consumed // share, last)
        share_of_last = len(range(self._starts[last] + self._rank, len(self.plan.index), self._world_size))
        complete = done == last and self.consumed - last * share >= share_of_last
        return len(self.plan.index) if complete else self._starts[done]
