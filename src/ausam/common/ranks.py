"""Rank, world size and the few values that processes exchange.

Every function that takes a group is collective: all processes of the group call it at the same point. A single process
calls none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = Any  # a ProcessGroup; None: the default one


def rank_and_world_size(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Rank and number of processes: as given, else torch.distributed's if it is initialised, else 0 of 1."""
    if rank is not None and world_size is not None:
        return rank, world_size
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def device(group: Group = None) -> torch.device:
    """The device that a group's backend works on: the CPU, unless it supports only accelerators (nccl)."""
    backend = str(dist.get_backend(group))
    # A group made without naming a backend has the name "undefined"; without an accelerator it is gloo.
    if any(name in backend for name in ("gloo", "mpi", "cpu", "fake")) or not torch.accelerator.is_available():
        return torch.device("cpu")
    accelerator: Any = torch.accelerator.current_accelerator()
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


def gather(x: Tensor, lengths: Sequence[int] | None = None, group: Group = None) -> list[Tensor]:
    """The 1-d tensors of all processes by rank, on the CPU. ``lengths`` of each, where they differ."""
    world = dist.get_world_size(group)
    lengths = [len(x)] * world if lengths is None else lengths
    room = torch.zeros(max(lengths), dtype=x.dtype, device=device(group))  # all_gather wants one length
    room[: len(x)] = x
    parts = [torch.empty_like(room) for _ in range(world)]
    if len(room):
        dist.all_gather(parts, room, group=group)
    return [t[:n].cpu() for t, n in zip(parts, lengths, strict=True)]


def any_of(flag: Tensor, group: Group) -> bool:
    """Whether the flag is set in any process."""
    raised = flag.to(device(group), torch.int32)
    dist.all_reduce(raised, op=dist.ReduceOp.MAX, group=group)
    return bool(raised)


def min_over_ranks(value: int, group: Group) -> int:
    """The smallest of the processes' values."""
    smallest = torch.tensor([value], device=device(group))
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN, group=group)
    return int(smallest)


def mean_over_ranks(value: Tensor, group: Group) -> Tensor:
    """The mean of a tensor over the processes, on the tensor's device."""
    total = value.detach().to(device(group), copy=True)
    dist.all_reduce(total, group=group)
    average: Tensor = total / group.size()
    return average.to(value.device)
