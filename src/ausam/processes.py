"""Several processes: who is who, and the few things that they tell each other. One process alone calls nothing here.

Everything but :func:`place` and :func:`group_of` is collective: every process of the group calls it at the same point.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Group = Any  # a ProcessGroup; None: the default one


def place(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Rank and number of processes: as given, else torch.distributed's if it is initialised, else 0 of 1."""
    if rank is not None and world_size is not None:
        return rank, world_size
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def group_of(model: nn.Module, params: Sequence[Tensor]) -> Group:
    """The processes that train this model together: DDP's group, all for sharded parameters, None for one process."""
    group = getattr(model, "process_group", None)
    if group is None and params and sharded(params[0]) and dist.is_initialized():
        group = dist.group.WORLD
    return None if group is None or group.size() == 1 else group


def sharded(t: Tensor) -> bool:
    """Whether this is a DTensor, of which each process holds a part; known by its method, for the import is slow."""
    return hasattr(t, "full_tensor")


def device(group: Group = None) -> torch.device:
    """Where a group's backend takes tensors from: the CPU unless it knows only accelerators (nccl)."""
    backend = str(dist.get_backend(group))
    kind = torch.accelerator.current_accelerator()
    # A group made without naming a backend has the name "undefined"; without an accelerator it is gloo.
    if kind is None or any(name in backend for name in ("gloo", "mpi", "cpu", "fake")):
        return torch.device("cpu")
    return torch.device(kind.type, torch.accelerator.current_device_index())


def gather(x: Tensor, lengths: Sequence[int] | None = None, group: Group = None) -> list[Tensor]:
    """The 1-d tensors of all processes by rank, on the CPU; ``lengths`` of each, where they differ."""
    world = dist.get_world_size(group)
    lengths = [len(x)] * world if lengths is None else lengths
    room = torch.zeros(max(lengths), dtype=x.dtype, device=device(group))  # all_gather wants one length
    room[: len(x)] = x
    found = [torch.empty_like(room) for _ in range(world)]
    if len(room):
        dist.all_gather(found, room, group=group)
    return [t[:n].cpu() for t, n in zip(found, lengths, strict=True)]


def any_of(flag: Tensor, group: Group) -> bool:
    """Whether the flag is up in one of the processes."""
    raised = flag.to(device(group), torch.int32)
    dist.all_reduce(raised, op=dist.ReduceOp.MAX, group=group)
    return bool(raised)


def mean(value: Tensor, group: Group) -> Tensor:
    """The mean of a tensor over the processes, where the tensor is."""
    total = value.detach().to(device(group), copy=True)
    dist.all_reduce(total, group=group)
    average: Tensor = total / group.size()
    return average.to(value.device)


@torch.no_grad()
def average_gradients(params: Iterable[Tensor], group: Group) -> None:
    """Make ``.grad`` the mean over the processes: None where none has one, zero where only another has.

    One call a precision, whatever the number of parameters; which of them have a gradient travels at the end.
    """
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for p in params:
        kinds.setdefault(p.dtype, []).append(p)
    for dtype, mine in kinds.items():
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in mine]
        have = torch.tensor([float(p.grad is not None) for p in mine])
        flat = mean(
            torch.cat([*(g.flatten().to(mine[0].device) for g in parts), have.to(mine[0].device, dtype)]), group
        )
        values = torch.split(flat[: -len(mine)], [g.numel() for g in parts])
        for p, g, value, owners in zip(mine, parts, values, flat[-len(mine) :].tolist(), strict=True):
            if owners > 0:
                p.grad = g.copy_(value.view_as(g))
