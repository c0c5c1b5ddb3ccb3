"""What DDP has averaged over the processes, and what it has not."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ausam.common.ranks import Group, mean_over_ranks
from ausam.common.tensors import Vector, sharded
from ausam.optimizer.journal import Action, Journal


@torch.no_grad()
def average_gradients(params: Sequence[Tensor], gradient: Vector, group: Group) -> Vector:
    """The mean of a gradient over the processes: None where none has an entry, and a missing one counts as zero.

    One call per precision, for any number of parameters; flags at the end say which of them have a gradient.
    """
    result: Vector = [None] * len(params)
    kinds: dict[torch.dtype, list[int]] = {}
    for i, p in enumerate(params):
        kinds.setdefault(p.dtype, []).append(i)
    for dtype, mine in kinds.items():
        home = params[mine[0]].device
        found = [gradient[i] for i in mine]
        parts = [torch.zeros_like(params[i]) if g is None else g for i, g in zip(mine, found, strict=True)]
        have = torch.tensor([float(g is not None) for g in found], device=home)
        flat = mean_over_ranks(torch.cat([*(g.flatten().to(home) for g in parts), have.to(home, dtype)]), group)
        values = torch.split(flat[: -len(mine)], [g.numel() for g in parts])
        for i, value, owners in zip(mine, values, flat[-len(mine) :].tolist(), strict=True):
            if owners > 0:
                result[i] = value.view_as(params[i]).to(params[i].device)
    return result


class GradientSync:
    """Which gradients DDP has averaged over the processes, and which it has not.

    DDP averages what a backward leaves in ``.grad``, but the passes of a step start with empty slots. So gradients
    accumulated inside ``no_sync`` are averaged here, at the first call outside it. A method's state from inside
    ``no_sync`` differs between processes, so from then on every gradient is averaged here.

    Arguments:
        model: the user's model: DDP's wrapper, a sharded model, or an ordinary one.
        sync_perturbation: average the gradients of the perturbation too.
    """

    def __init__(self, model: nn.Module, sync_perturbation: bool) -> None:
        self._model = model
        self._ddp_group: Group = getattr(model, "process_group", None)
        self._no_sync = None if sync_perturbation else getattr(model, "no_sync", None)
        self._finds_unused = bool(getattr(model, "find_unused_parameters", False))
        self._in_grad_unsynced = False
        self._in_memory_unsynced = False
        self._reached: set[Tensor] = set()  # by passes inside no_sync, since DDP last averaged

    def group(self, params: Sequence[Tensor]) -> Group:
        """The processes that train the model together: DDP's, all for sharded parameters, None for one process."""
        group = self._ddp_group
        if group is None and params and sharded(params[0]) and dist.is_initialized():
            group = dist.group.WORLD
        return None if group is None or group.size() == 1 else group

    @property
    def views(self) -> bool:
        """Whether ``.grad`` may be a view of DDP's buckets."""
        return self._ddp_group is not None

    @property
    def averages(self) -> bool:
        """Whether DDP averages the gradients of a backward now: not inside no_sync."""
        return self._ddp_group is None or bool(getattr(self._model, "require_backward_grad_sync", True))

    def note(self, journal: Journal) -> None:
        """Record whether DDP synchronises, because a step switches it off and on."""
        switch = "require_backward_grad_sync"
        if switch in self._model.__dict__:
            journal.note(operator.setitem, self._model.__dict__, switch, self._model.__dict__[switch])

    def paused(self) -> contextlib.AbstractContextManager[Any] | None:
        """A context in which processes do not average; None where they never do, or always should.

        DDP decides in forward whether the backward will synchronise, so the context must cover both.
        """
        return None if self._no_sync is None else self._no_sync()

    def before_backward(self) -> None:
        """Give DDP a gradient for every parameter reached since the last average, because it fails on a missing one."""
        if self._reached and self.averages:
            for p in self._reached:
                p.grad = torch.zeros_like(p)

    def after_backward(self, params: Sequence[Tensor], gradient: Vector) -> None:
        """Remember what a pass inside no_sync has reached, where DDP looks for unused parameters."""
        if self._finds_unused:
            found = {p for p, g in zip(params, gradient, strict=True) if g is not None}
            self._reached = set() if self.averages else self._reached | found

    @property
    def owes(self) -> bool:
        """Whether to average now: outside no_sync, with unaveraged values in ``.grad`` or the method's memory."""
        return self.averages and (self._in_grad_unsynced or self._in_memory_unsynced)

    def settled(self, *, remembers: bool) -> Action:
        """The action that records what this step leaves unaveraged in ``.grad`` and in the method's memory."""
        inside = not self.averages
        flags = {
            "_in_grad_unsynced": inside,
            "_in_memory_unsynced": self._in_memory_unsynced or (inside and remembers),
        }
        return self.__dict__.update, flags
