"""The plan that determines the batches of an epoch, and its blocks, which are drawn when they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ausam.common.random import generator
from ausam.common.tensors import CPU
from ausam.policies.base import Policy, Sliced
from ausam.policies.draws import Choice
from ausam.sampler.permutation import Permutation

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores

# Approximate number of candidates planned at a time. Every block has its own random numbers, so changing this changes
# every plan.
BLOCK = 1 << 16

# Purposes of random numbers: part of a generator's key, before the number of the block or of the pick.
ORDER, PICK, CHOICE, WITHIN = 0, 1, 2, 3


@dataclass(frozen=True)
class Plan:
    """An epoch before anything is drawn: its blocks can be drawn in any sequence, with the same result.

    A sample is a candidate once per epoch, so feedback on one block is not used in another. All processes share one
    plan.

    Arguments:
        epoch: number of the epoch.
        seed: determines the plan, together with the epoch and the scores.
        samples: number of samples in the dataset.
        offered: number of candidates: all samples, or those in whole mini-batches.
        size: candidates per mini-batch.
        kept: samples used per mini-batch; a short last one may have fewer.
        total: samples used in the epoch.
        scope: scope of the policy.
        order_id: which order of the samples: that of the epoch, or one that several epochs share.
        start: position of the first candidate in the order.
        shuffle: whether the candidates are shuffled once more, or taken in the sequence of the order.
    """

    epoch: int
    seed: int
    samples: int
    offered: int
    size: int
    kept: int
    total: int
    scope: str
    order_id: int
    start: int = 0
    shuffle: bool = False

    @cached_property
    def order(self) -> Permutation:
        """The order of all samples."""
        return Permutation(self.samples, generator(self.seed, self.order_id, ORDER))

    @cached_property
    def within(self) -> Permutation:
        """The sequence of the candidates' positions, with ``shuffle``."""
        return Permutation(self.offered, generator(self.seed, self.epoch, WITHIN))

    @property
    def width(self) -> int:
        """Candidates per block: whole mini-batches."""
        return max(1, BLOCK // self.size) * self.size

    def drawn(self, block: int, policy: Policy, scores: Scores) -> Choice:
        """The samples that the policy chooses inside the mini-batches of a block, in order; their weights, or None."""
        order = self.candidates(block)
        rng = generator(self.seed, self.epoch, CHOICE, block)
        whole = len(order) // self.size * self.size
        index, weight = [], []
        for candidates in (order[:whole].view(-1, self.size), order[whole:].view(1, -1)):
            if candidates.numel():
                positions, factor = policy.choose(scores, self.epoch, candidates, rng)
                _refuse_other_count(policy, self.epoch, positions, candidates)
                index.append(candidates.gather(1, positions).flatten())
                if factor is not None:
                    weight.append(factor.flatten())
        return torch.cat(index), torch.cat(weight) if weight else None

    def ends_before(self, block: int, choice: EpochChoice | None) -> bool:
        """Whether there is no such block."""
        draws = None if choice is None else choice.draws
        return block * self.width >= (self.offered if draws is None else len(draws))

    def chosen(self, block: int, choice: EpochChoice) -> Tensor:
        """The chosen samples of a block, in order."""
        if choice.draws is not None:
            return choice.draws[block * self.width : (block + 1) * self.width].long()
        order = self.candidates(block)
        return order[choice.mask.index_select(0, order)]

    def candidates(self, block: int) -> Tensor:
        """All samples of a block, in order."""
        start, stop = block * self.width, min((block + 1) * self.width, self.offered)
        if not self.start and not self.shuffle:
            return self.order(start, stop)
        position = self.within(start, stop).numpy() if self.shuffle else np.arange(start, stop)
        position += self.start
        position -= (position >= self.samples) * self.samples
        return self.order.at(position)


@dataclass(frozen=True)
class EpochChoice:
    """The samples that a policy of scope "epoch" uses: one byte per sample, five if it weights them.

    Arguments:
        order_id: number of the policy's choice.
        mask: whether each sample is used.
        weight: factor of every sample's loss, or None.
        draws: the samples of the epoch in order, for a policy with replacement; otherwise None.
    """

    order_id: int
    mask: Tensor
    weight: Tensor | None
    draws: Tensor | None = None

    @property
    def samples(self) -> int:
        """Number of samples of an epoch."""
        return int(self.mask.sum()) if self.draws is None else len(self.draws)


def choose_epoch(policy: Policy, scores: Scores, epoch: int, seed: int, order_id: int) -> EpochChoice:
    """Let a policy of scope "epoch" choose among all samples, by all scores at once."""
    order = Permutation(len(scores), generator(seed, epoch, ORDER))
    candidates = torch.empty(len(scores), dtype=torch.int64, device=CPU)
    for start in range(0, len(candidates), BLOCK):
        block = candidates[start : start + BLOCK]
        block.copy_(order(start, start + len(block)))
    positions, factor = policy.choose(scores, epoch, candidates[None], generator(seed, epoch, CHOICE))
    if policy.count(epoch, len(candidates)) is not None:
        _refuse_other_count(policy, epoch, positions, candidates[None])
    index = candidates[positions[0]]
    mask = torch.zeros(len(scores), dtype=torch.bool, device=CPU)
    mask[index] = True
    weight = None
    if factor is not None:
        weight = torch.ones(len(scores), dtype=torch.float32, device=CPU)
        weight[index] = factor[0].to(weight.dtype)
    # Without replacement the order within an epoch is that of its plan, so that the choice takes one byte per sample.
    narrow = torch.int32 if len(scores) < 1 << 31 else torch.int64
    return EpochChoice(order_id, mask, weight, index.to(narrow) if getattr(policy, "replacement", False) else None)


def plan_batches(policy: Policy, samples: int, epoch: int, seed: int, size: int, drop_last: bool) -> Plan:
    """The plan for a policy that chooses inside each mini-batch."""
    size = min(size, samples)
    kept, short = policy.count(epoch, size), samples % size
    last = policy.count(epoch, short) if short and not drop_last else 0
    if kept is None or last is None:
        raise TypeError(
            f'{type(policy).__name__}: count(epoch, n) returned None, but a policy of scope "batch" must keep a fixed '
            "number of n candidates, whatever their scores. Return that number."
        )
    offered = samples - short if drop_last else samples
    return Plan(epoch, seed, samples, offered, size, kept, samples // size * kept + last, "batch", epoch)


def plan_chosen(used: int, samples: int, epoch: int, seed: int, size: int, drop_last: bool) -> Plan:
    """The plan for a policy that chooses ``used`` of all samples; drop_last never drops the only batch."""
    size = min(size, samples)
    return Plan(epoch, seed, samples, samples, size, size, _used(used, size, drop_last), "epoch", epoch)


def plan_slice(policy: Sliced, samples: int, epoch: int, seed: int, size: int, drop_last: bool) -> Plan:
    """The plan for a policy whose epochs are slices of an order; drop_last as in ``plan_chosen``."""
    size = min(size, samples)
    part, kept = policy.slice(epoch, samples), policy.size(size)
    total = _used(part.length, kept, drop_last)
    return Plan(epoch, seed, samples, part.length, size, kept, total, "slice", part.order_id, part.start, part.shuffle)


def _used(samples: int, size: int, drop_last: bool) -> int:
    return samples - samples % size if drop_last and samples >= size else samples


def _refuse_other_count(policy: Policy, epoch: int, positions: Tensor, candidates: Tensor) -> None:
    n, kept = candidates.shape[1], positions.shape[1]
    if kept != policy.count(epoch, n):
        raise ValueError(
            f"{type(policy).__name__} kept {kept} of {n} candidates in epoch {epoch}, but its count({epoch}, {n}) is "
            f"{policy.count(epoch, n)}. The sampler computes the length of an epoch from count before it calls choose. "
            "Let choose return as many positions as count says."
        )
