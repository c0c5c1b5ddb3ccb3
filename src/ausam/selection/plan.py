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
    """The batches of one epoch: batch b is ``index[bounds[b]:bounds[b + 1]]``; what drop_last leaves out follows."""

    epoch: int
    index: Tensor
    bounds: Tensor
    weight: Tensor | None = None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def batch(self, b: int) -> list[int]:
        """The dataset indices of batch ``b``."""
        batch: list[int] = self.index[int(self.bounds[b]) : int(self.bounds[b + 1])].tolist()
        return batch

    def complete(self, samples: int) -> int:
        """How many batches are complete once ``samples`` samples of the plan have been used."""
        return int(torch.searchsorted(self.bounds, samples, right=True)) - 1

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
