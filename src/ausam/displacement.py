"""Displacement: the weights elsewhere, and back.

The weights ``w`` are not written. Their tensors get the storage of a vector that holds the other point, and their own
storage back afterwards: nothing is copied, and coming back is exact. Where a swap would be felt elsewhere (sharded
parameters, storage that others share, addresses that a compiled graph has recorded) the values are copied instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ausam.journal import Journal, each, get_data, set_data
from ausam.tensors import PLAIN, Vector, local, sharded


class Displacement:
    """A context in which the weights are at another point; leaving it brings them back bit for bit.

    Arguments:
        params: the parameters to move.
        values: where to: one tensor per parameter, None where it stays. They are given up if ``relative``.
        relative: the values are distances from ``w``, and their memory becomes that of ``w + values``.
        times: a scalar that relative values are multiplied with on the way, or None.
        journal: where to write down how to come back, before anything moves.
        modules: of the model; their casts and gathered weights are stale once the weights have moved.
        swap: whether the storage of these parameters may be swapped.
    """

    def __init__(
        self,
        params: Sequence[nn.Parameter],
        values: Vector,
        journal: Journal,
        modules: Sequence[nn.Module],
        *,
        relative: bool,
        swap: bool,
        times: Tensor | None = None,
    ) -> None:
        moved = [(p, v) for p, v in zip(params, values, strict=True) if v is not None]
        self._params = [p for p, _ in moved]
        self._values = [v for _, v in moved]
        self._relative = relative
        self._times = times
        self._journal = journal
        self._modules = modules
        self._swap = swap
        self.active = False

    def __enter__(self) -> None:
        self.active = True
        if self._params:
            if self._swap:
                self._home = list(map(get_data, self._params))
                there = (
                    _beyond(self._home, self._values, self._times) if self._relative else _as(self._home, self._values)
                )
                self._journal.note_each(set_data, self._params, self._home)
                each(set_data, self._params, there)
            else:
                self._home = [local(p).detach() for p in self._params]
                self._saved = [t.clone() for t in self._home]
                self._journal.note(torch._foreach_copy_, self._home, self._saved)
                values = [local(v) for v in self._values]
                if self._times is not None:
                    torch._foreach_mul_(values, self._times)
                move = torch._foreach_add_ if self._relative else torch._foreach_copy_
                move(self._home, values)
        self._values = []  # a copy of the weights less while the passes inside run
        self._forget()

    def __exit__(self, *_: object) -> None:
        if self._params:
            if self._swap:
                each(set_data, self._params, self._home)
            else:
                torch._foreach_copy_(self._home, self._saved)
        self._forget()
        self.active = False

    def _forget(self) -> None:
        """Drop what was made of the weights before they moved: an enclosing autocast's casts, FSDP's whole weights."""
        if torch.is_autocast_cache_enabled():
            torch.clear_autocast_cache()
        if self._params and sharded(self._params[0]):
            for m in self._modules:
                reshard: Any = getattr(m, "reshard", None)
                if reshard is not None:
                    reshard()


class Swappable:
    """Whether the storage of parameters may be swapped; looked at again only when one of them has moved in memory.

    Each must be an ordinary tensor that has a storage to itself, and no compiled graph may have recorded its address.

    Arguments:
        model: the model that they belong to.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._compiled = any(_compiled(m) for m in model.modules())
        self._addresses: list[int] = []
        self._answer = False

    def __call__(self, params: Sequence[Tensor]) -> bool:
        """Whether it may be done with these."""
        if self._compiled or _compiled(self._model) or not PLAIN.issuperset(map(type, params)):
            return False
        addresses = list(map(Tensor.data_ptr, params))
        if addresses != self._addresses or not any(addresses):  # no address: the meta device, or nothing in them
            self._addresses, self._answer = addresses, _alone(params, addresses)
        return self._answer


def _compiled(module: nn.Module) -> bool:
    """Whether torch.compile made this module: CUDA graphs record the addresses of the weights."""
    return module._compiled_call_impl is not None or "_orig_mod" in module._modules


def _alone(params: Sequence[Tensor], addresses: list[int]) -> bool:
    known = [a for a in addresses if a]
    whole = all(p.untyped_storage().nbytes() == p.numel() * p.element_size() for p in params)
    return whole and len(set(known)) == len(known)


def _beyond(home: list[Tensor], values: list[Tensor], times: Tensor | None) -> list[Tensor]:
    """``home + times * values``, in the memory of ``values`` where it is fit for the weights."""
    if [(v.dtype, v.device) for v in values] != [(w.dtype, w.device) for w in home]:
        factor = 1.0 if times is None else times
        return [(w + v.to(w.device) * factor).to(w.dtype) for v, w in zip(values, home, strict=True)]
    if times is not None:
        torch._foreach_mul_(values, times)  # not fused with the sum, which would round once where others round twice
    torch._foreach_add_(values, home)
    return values


def _as(home: list[Tensor], values: list[Tensor]) -> list[Tensor]:
    """The values, as what the weights are."""
    return [v.to(w.device, w.dtype) for v, w in zip(values, home, strict=True)]
