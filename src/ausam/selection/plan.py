"""The plan of an epoch: which samples form which batch, drawn before the first of them is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from ausam.selection.policy import Policy
from ausam.selection.scores import Scores

# Samples planned at a time: bounds the memory of the temporaries, whatever the size of the dataset.
BLOCK = 1 << 20


@dataclass(frozen=True)
class Plan:
    """The batches of one epoch: batch b is ``index[bounds[b]:bounds[b + 1]]``; what drop_last leaves out follows.

    One plan serves all processes: each batch is dealt to them like cards, so their shares differ by at most one sample.
    """

    epoch: int
    index: Tensor
    bounds: Tensor
    weight: Tensor | None = None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def batch(self, b: int, rank: int = 0, world: int = 1) -> list[int]:
        """The dataset indices of one process's share of batch ``b``."""
        batch: list[int] = self.index[int(self.bounds[b]) + rank : int(self.bounds[b + 1]) : world].tolist()
        return batch

    def complete(self, samples: int, rank: int = 0, world: int = 1) -> int:
        """How many batches are complete once a process has used ``samples`` samples of its shares."""
        shares = (self.bounds.diff() - rank + world - 1).div(world, rounding_mode="floor")
        return int(torch.searchsorted(shares.cumsum(0), samples, right=True))

    def dealt(self, world: int) -> Plan:
        """The plan with a sample for each of ``world`` processes in every batch.

        A batch of fewer samples is joined to those that follow until there are enough, at the end to the one before.
        """
        if world == 1 or (len(self) and int(self.bounds.diff().min()) >= world):
            return self
        end = int(self.bounds[-1])
        if end < world:
            raise ValueError(
                f"The policy chose {end} samples for epoch {self.epoch}, and there are {world} processes, each of "
                "which needs one. Use fewer processes, or let the policy keep more."
            )
        bounds = [0]
        for b in self.bounds[1:].tolist():
            if b - bounds[-1] >= world:
                bounds.append(b)
        bounds[-1] = end
        return Plan(self.epoch, self.index, torch.tensor(bounds), self.weight)

    def rest(self, done: int) -> Plan:
        """The plan without its first ``done`` batches."""
        start = int(self.bounds[done])
        weight = None if self.weight is None else self.weight[start:].clone()
        return Plan(self.epoch, self.index[start:].clone(), self.bounds[done:] - start, weight)

    def state_dict(self) -> dict[str, Any]:
        """As tensors and numbers."""
        return {"epoch": self.epoch, "index": self.index, "bounds": self.bounds, "weight": self.weight}


def draw(
    policy: Policy,
    scores: Scores,
    epoch: int,
    batch_size: int,
    drop_last: bool,
    rng: Generator,
    held: Tensor | None = None,
) -> Plan:
    """Shuffle all samples, cut them into mini-batches and let the policy choose inside each, or choose before cutting.

    ``held`` marks the samples that a policy of scope "epoch" chose in an earlier epoch and still holds to.
    """
    n = len(scores)
    order = torch.randperm(n, generator=rng)
    if getattr(policy, "scope", "batch") == "epoch":
        weight = None
        if held is None:
            kept, factor = policy.choose(scores, epoch, order[None], rng)
            order, weight = order[kept[0]], None if factor is None else factor[0]
        else:
            order = order[held[order]]
        return Plan(epoch, order, _cut(len(order), batch_size, drop_last), weight)
    whole = n // batch_size
    rows = max(1, BLOCK // batch_size)
    blocks = list(torch.split(order[: whole * batch_size].view(whole, batch_size), rows))
    if n % batch_size and not drop_last:
        blocks.append(order[whole * batch_size :].view(1, -1))
    index, weights, sizes = [], [], []
    for candidates in blocks:
        kept, factor = policy.choose(scores, epoch, candidates, rng)
        index.append(candidates.gather(1, kept).flatten())
        sizes.append(torch.full((len(kept),), kept.shape[1]))
        if factor is not None:
            weights.append(factor.flatten())
    del blocks, order
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), *sizes]).cumsum(0)
    joined = torch.cat(index) if index else torch.empty(0, dtype=torch.int64)
    return Plan(epoch, joined, bounds, torch.cat(weights) if weights else None)


def _cut(n: int, batch_size: int, drop_last: bool) -> Tensor:
    """The bounds of mini-batches of ``n`` samples; a short one goes with drop_last, unless there is no other."""
    end = n - n % batch_size if drop_last and n >= batch_size else n
    return torch.cat([torch.arange(0, end, batch_size), torch.tensor([end])])
