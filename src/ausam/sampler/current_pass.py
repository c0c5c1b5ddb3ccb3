"""Pass: one pass over an epoch, planned block by block as batches are needed; handed out, saved and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor

from ausam.common.tensors import CPU
from ausam.policies.base import Policy, Sliced
from ausam.sampler.plan import EpochChoice, Plan, plan_batches, plan_chosen, plan_slice
from ausam.sampler.scores import Scores
from ausam.sampler.state import refuse
from ausam.sampler.weights import Weights

# Before the first update it is not known how far a loader is ahead, so this many blocks of the plan are kept.
AHEAD = 64

CUT_SHORT = "its plan ends before the last sample of the epoch"


@dataclass(frozen=True)
class Block:
    """Planned samples: from position ``start`` of the epoch up to the block ``after``."""

    start: int
    index: Tensor
    after: int

    @property
    def stop(self) -> int:
        """The first position after the block."""
        return self.start + len(self.index)


@dataclass(frozen=True)
class BatchSpans:
    """A pass split into ``count`` batches of ``step`` samples each; the last takes the rest."""

    total: int
    step: int
    count: int

    def __len__(self) -> int:
        return self.count

    def span(self, batch: int) -> tuple[int, int]:
        """The first sample of a batch, and the first after it."""
        return batch * self.step, self.total if batch == self.count - 1 else (batch + 1) * self.step

    def complete(self, samples: int, rank: int, world: int) -> int:
        """How many batches are complete once a process has used ``samples`` samples of its shares."""

        def share(batch: int) -> int:
            start, stop = self.span(batch)
            return (stop - start - rank + world - 1) // world

        done = min(samples // share(0), self.count - 1)
        last = done == self.count - 1 and samples - done * share(0) >= share(done)
        return done + last


def split_into_batches(total: int, kept: int, least: int) -> BatchSpans:
    """Mini-batches of ``kept`` samples, joined until each has ``least``; a remainder joins the batch before it.

    No batches if there are fewer than ``least`` samples in all.
    """
    step = kept * -(-least // kept)
    return BatchSpans(total, step, total // step + (total % step >= least))


class Pass:
    """One pass over the plan of an epoch, or over the rest of it.

    A block is planned when its first batch is needed. The samples of earlier batches are not among its candidates, so
    feedback on them changes nothing: the result is the same as planning the whole epoch at its start. Positions count
    the samples of the plan, over all processes, from 0 to ``plan.total``.

    Arguments:
        plan: the plan of the epoch.
        policy: chooses inside the mini-batches.
        scores: the scores that the policy reads.
        weights: receives the weights of planned samples.
        choice: the samples of the epoch, for a policy of scope "epoch".
        first: the first block, for a pass that was interrupted inside it.
        updated: whether ``update`` was called in an earlier pass, so that consumed batches will be known.
    """

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        scores: Scores,
        weights: Weights,
        choice: EpochChoice | None = None,
        first: Block | None = None,
        *,
        updated: bool = False,
    ) -> None:
        self.plan = plan
        self.choice = choice
        self.resumed = first is not None
        self.begun = first.start if first else 0  # the position where this pass begins
        self.handed_out = 0  # batches
        self.delivered = 0  # samples of this process, in these batches
        self.consumed = 0  # samples of this process, as update counts them
        self.running = False  # whether somebody iterates over it
        self.policy = policy
        self._scores, self._weights = scores, weights
        self._updated = updated
        self._rank, self._world = 0, 1
        self._spans = BatchSpans(plan.total - self.begun, plan.total, 1)
        nothing = Block(0, torch.empty(0, dtype=torch.int64, device=CPU), 0)
        self._blocks = [first or nothing]  # not consumed yet

    def split(self, world: int, min_batch: int) -> BatchSpans:
        """The batches of the pass for ``world`` processes; refused if there are too few samples."""
        left = self.plan.total - self.begun
        spans = split_into_batches(left, self.plan.kept, world * min_batch)
        if not len(spans):
            what = f"The policy chose {left} samples for" if not self.begun else f"{left} samples are left of"
            raise ValueError(
                f"{what} epoch {self.plan.epoch}, but {world * min_batch} are needed: min_batch={min_batch} for each "
                f"of {world} processes. Use fewer processes or a smaller min_batch, let the policy keep more, or begin "
                f"the next epoch with set_epoch({self.plan.epoch + 1})."
            )
        return spans

    def batches(self, rank: int, world: int, min_batch: int) -> Iterator[list[int]]:
        """The dataset indices of this process's share of each batch: dealt in turn, so shares differ by at most one."""
        self._rank, self._world = rank, world
        self._spans = self.split(world, min_batch)
        at, ready = self.begun, self._blocks[0].index.tolist()
        for batch in range(len(self._spans)):
            start, stop = self._spans.span(batch)
            start, stop = start + self.begun, stop + self.begun
            if stop - at > len(ready):
                at, ready = start, ready[start - at :]
                for index in self._planned(stop - start - len(ready)):
                    ready += index.tolist()
            mine = ready[start - at + rank : stop - at : world]
            self.handed_out, self.delivered = batch + 1, self.delivered + len(mine)
            yield mine

    def _planned(self, samples: int) -> Iterator[Tensor]:
        """Plan the next blocks until enough samples are planned."""
        while samples > 0:
            if self._has_feedback:
                done = self.done
                self._blocks = [b for b in self._blocks[:-1] if b.stop > done] + self._blocks[-1:]
            else:
                self._blocks = self._blocks[-AHEAD:]
            last = self._blocks[-1]
            if self.plan.ends_before(last.after, self.choice):
                raise refuse(CUT_SHORT)
            index = self._draw(last.after)
            self._blocks.append(Block(last.stop, index, last.after + 1))
            samples -= len(index)
            yield index

    def _draw(self, block: int) -> Tensor:
        if self.choice is not None:
            return self.plan.chosen(block, self.choice)
        if self.plan.scope == "slice":
            return self.plan.candidates(block)
        index, weight = self.plan.drawn(block, self.policy, self._scores)
        if weight is not None:
            self._weights.put(index, weight)
        return index

    @property
    def _has_feedback(self) -> bool:
        """Whether consumed batches are known from calls of update, in this pass or an earlier one."""
        return bool(self.consumed) or self._updated

    @property
    def ahead(self) -> bool:
        """Whether more samples were used than handed out, while somebody iterates over the pass."""
        return self.running and self.consumed > self.delivered

    @property
    def done(self) -> int:
        """The position up to which all batches are consumed."""
        # Without any call of update, a batch that was handed out counts as consumed.
        known = self._spans.complete(self.consumed, self._rank, self._world) if self._has_feedback else None
        batches = self.handed_out if known is None else known
        return self.plan.total if batches == len(self._spans) else self.begun + self._spans.span(batches)[0]

    def state_dict(self) -> dict[str, Any] | None:
        """The state needed to plan the rest: numbers, and the rest of one block; None at the end.

        That block is partly consumed. It is saved because the scores of the consumed samples have changed since it was
        planned.
        """
        done = self.done
        if done == self.plan.total:
            return None
        block = next((b for b in self._blocks if b.stop > done), self._blocks[-1])
        if block.start > done:
            raise RuntimeError(
                f"The loader took {self.handed_out} batches before the first update, so many that the plan of the "
                "first is gone, and the state cannot be saved before the epoch ends. Prefetch fewer batches."
            )
        index = block.index[done - block.start :].clone()
        table = self._weights.table if self.choice is None else None
        weight = None if table is None else table[index]
        return {**asdict(self.plan), "done": done, "next": block.after, "index": index, "weight": weight}


def resume(
    state: dict[str, Any],
    policy: Policy,
    scores: Scores,
    weights: Weights,
    choice: EpochChoice | None,
    *,
    updated: bool,
) -> Pass:
    """The rest of a saved pass; refused if the policy cannot plan the part that is not planned yet."""
    plan = Plan(**{field.name: state[field.name] for field in fields(Plan)})
    planned = state["done"] + len(state["index"]) >= plan.total
    if not planned and plan.ends_before(state["next"], choice):
        raise refuse(CUT_SHORT)
    if not planned and not _continues(plan, policy, choice):
        raise ValueError(
            f"The saved pass is in the middle of epoch {plan.epoch}, and {type(policy).__name__} would plan the rest "
            "of it differently. Resume with the policy of the saved run until the epoch ends."
        )
    first = Block(state["done"], state["index"], state["next"])
    return Pass(plan, policy, scores, weights, choice, first, updated=updated)


def _continues(plan: Plan, policy: Policy, choice: EpochChoice | None) -> bool:
    """Whether the policy would make the same plan, and so continue it in the way that it began."""
    if plan.scope != policy.scope:
        return False
    shape = plan.samples, plan.epoch, plan.seed, plan.size
    if plan.scope == "batch":
        return plan == plan_batches(policy, *shape, drop_last=plan.offered < plan.samples)
    if plan.scope == "slice":
        return plan == plan_slice(cast("Sliced", policy), *shape, drop_last=plan.total < plan.offered)
    used = 0 if choice is None else choice.samples
    return plan == plan_chosen(used, *shape, drop_last=plan.total < used)
