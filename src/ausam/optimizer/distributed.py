"""GradientSync: what DDP has averaged over the processes, and what it has not."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ausam.common.ranks import Group, mean_over_ranks
from ausam.common.tensors import Vector, sharded
from ausam.optimizer.parameters import Undo


@torch.no_grad()
def average_gradients(params: Sequence[Tensor], gradient: Vector, group: Group) -> Vector:
    """The mean of a gradient over the processes: None where none has an entry, and a missing one counts as zero.

    One call per precision, for any number of parameters. Flags at the end say which of them have a gradient.
    """
    result: Vector = [None] * len(params)
    kinds: dict[torch.dtype, list[int]] = {}
    for i, p in enumerate(params):
        kinds.setdefault(p.dtype, []).append(i)
    for dtype, mine in kinds.items():
        home = params[mine[0]].device
        entries = [gradient[i] for i in mine]
        parts = [torch.zeros_like(params[i]) if g is None else g for i, g in zip(mine, entries, strict=True)]
        have = torch.tensor([float(g is not None) for g in entries], device=home)
        flat = mean_over_ranks(torch.cat([*(g.flatten().to(home) for g in parts), have.to(home, dtype)]), group)
        values = torch.split(flat[: -len(mine)], [g.numel() for g in parts])
        for i, value, owners in zip(mine, values, flat[-len(mine) :].tolist(), strict=True):
            if owners > 0:
                result[i] = value.view_as(params[i]).to(params[i].device)
    return result


class NoSync:
    """The null object for one process: nothing is averaged, as its attributes say."""

    active: Literal[False] = False
    group: None = None
    views = False
    no_sync = contextlib.nullcontext
    must_average = False


class GradientSync:
    """Which gradients DDP has averaged over the processes, and which it has not.

    DDP averages what a backward leaves in ``.grad``, but the passes of a step start with empty slots. So gradients
    accumulated inside ``no_sync`` are averaged here, at the first call outside it. A method's state from inside
    ``no_sync`` differs between processes, so from then on every gradient is averaged here.

    Arguments:
        model: the user's model: DDP's wrapper or a sharded model.
        group: the processes that train the model together. None for one process.
        sync_perturbation: average the gradients of the perturbation too.
    """

    def __init__(self, model: nn.Module, group: Group, sync_perturbation: bool) -> None:
        self.active: Literal[True] = True
        self.group = group
        self.views = hasattr(model, "process_group")  # whether ``.grad`` may be a view of DDP's buckets
        self._finds_unused = bool(getattr(model, "find_unused_parameters", False))
        self._model = model
        self._always = sync_perturbation
        self._no_sync = None if sync_perturbation else getattr(model, "no_sync", None)
        self._in_grad_unsynced = False
        self._in_memory_unsynced = False
        self._reached: set[Tensor] = set()  # by passes inside no_sync, since DDP last averaged

    @property
    def averages(self) -> bool:
        """Whether DDP averages the gradients of a backward now: not inside no_sync."""
        return not self.views or bool(getattr(self._model, "require_backward_grad_sync", True))

    def no_sync(self, undo: Undo) -> contextlib.AbstractContextManager[Any]:
        """A context in which processes do not average. If they never do, or always should, it does nothing.

        DDP decides in forward whether the backward will synchronise, so the context must cover both.
        """
        if self._no_sync is None:
            return contextlib.nullcontext()
        switch = "require_backward_grad_sync"
        if switch in vars(self._model):
            undo.append(functools.partial(setattr, self._model, switch, vars(self._model)[switch]))
        context: contextlib.AbstractContextManager[Any] = self._no_sync()
        return context

    def before_backward(self) -> None:
        """Give DDP a gradient for every parameter reached since the last average, because it fails on a missing one."""
        if self._reached and self.averages:
            for p in self._reached:
                p.grad = torch.zeros_like(p)

    def after_backward(self, params: Sequence[Tensor], gradient: Vector) -> Vector:
        """The gradient of a pass: averaged here if the perturbation must be, although the user is inside no_sync.

        Remembers what a pass inside no_sync has reached, where DDP looks for unused parameters.
        """
        if self._finds_unused:
            reached = {p for p, g in zip(params, gradient, strict=True) if g is not None}
            self._reached = set() if self.averages else self._reached | reached
        if gradient and sharded(params[0]) and all(g is None for g in gradient):
            raise RuntimeError(
                "FSDP holds the gradients back because of set_requires_gradient_sync(False), so the method has none. "
                "Leave it True: opt.backward adds up the averaged gradients of several calls itself."
            )
        if self._always and self.group is not None and not self.averages:
            return average_gradients(params, gradient, self.group)
        return gradient

    @property
    def must_average(self) -> bool:
        """Whether to average now: outside no_sync, with unaveraged values in ``.grad`` or the method's memory."""
        return self.group is not None and self.averages and (self._in_grad_unsynced or self._in_memory_unsynced)

    def record(self, *, remembers: bool, undo: Undo) -> None:
        """Note what this step leaves unaveraged in ``.grad`` and in the method's memory."""
        undo.append(functools.partial(self._set, self._in_grad_unsynced, self._in_memory_unsynced))
        inside = not self.averages
        self._set(inside, self._in_memory_unsynced or (inside and remembers))

    def _set(self, grad: bool, memory: bool) -> None:
        self._in_grad_unsynced, self._in_memory_unsynced = grad, memory


def choose_sync(model: nn.Module, params: Iterable[Tensor], sync_perturbation: bool) -> GradientSync | NoSync:
    """The bookkeeping that a model needs: of DDP's group, of all processes for sharded parameters, or none."""
    group: Group = getattr(model, "process_group", None)
    spread = dist.is_available() and dist.is_initialized() and any(map(sharded, params))
    if group is None and not spread and not hasattr(model, "no_sync"):
        return NoSync()
    group = dist.group.WORLD if group is None and spread else group
    return GradientSync(model, None if group is None or group.size() == 1 else group, sync_perturbation)
