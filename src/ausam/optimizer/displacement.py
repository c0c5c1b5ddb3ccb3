"""Displacement: move the weights to another point, and back.

The weights ``w`` are not overwritten. Their tensors use the storage of a vector that holds the other point, and get
their own storage back afterwards. Nothing is copied, and the return is exact. If a swap would have side effects
(sharded parameters, shared storage, addresses that a compiled graph has recorded) the values are copied instead.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ausam.common.tensors import PLAIN, Vector, get_data, get_device, get_dtype, local, present, sharded
from ausam.optimizer.parameters import Undo

Measured = Literal["loss", "perturbed"]  # the columns of Feedback


class Displacement:
    """A context in which the weights are at another point. Leaving it restores them bit for bit.

    Arguments:
        params: the parameters to move.
        values: the target: one tensor per parameter, None where it stays.
        undo: takes the way back, before anything moves.
        modules: the model's modules. FSDP has gathered weights that are stale once the weights have moved.
        relative: the values are offsets from ``w``, and their memory is reused for ``w + values``.
        swap: whether to swap the storage of the parameters. Otherwise the values are copied.
        measures: the feedback column for losses evaluated inside.
    """

    def __init__(
        self,
        params: Sequence[nn.Parameter],
        values: Vector,
        undo: Undo,
        modules: Sequence[nn.Module],
        *,
        relative: bool,
        swap: bool,
        measures: Measured = "perturbed",
    ) -> None:
        if len(values) != len(params):
            raise ValueError(f"{len(values)} values for {len(params)} parameters. Give one per parameter, or None.")
        self._values = present(values)
        everything = len(self._values) == len(params)
        self._params = params if everything else [p for p, v in zip(params, values, strict=True) if v is not None]
        self._relative = relative
        self._undo = undo
        self._modules = modules
        self._swap = swap
        self.measures = measures
        self.active = False

    def __enter__(self) -> None:
        self.active = True
        if self._swap:
            self._home = [*map(get_data, self._params)]
            there = (_add_into if self._relative else _cast_like)(self._values, self._home)
            self._undo.append(self._return)
            for p, value in zip(self._params, there, strict=True):
                p.data = value
        else:
            self._home = [local(p).detach() for p in self._params]
            self._saved = [t.clone() for t in self._home]
            self._undo.append(self._return)
            if self._home:
                move = torch._foreach_add_ if self._relative else torch._foreach_copy_
                move(self._home, [local(v) for v in self._values])
        self._values = []  # saves one copy of the weights during the passes inside
        self._invalidate_caches()

    def __exit__(self, *_: object) -> None:
        self._return()
        self._undo.remove(self._return)
        self._invalidate_caches()
        self.active = False

    def _return(self) -> None:
        if self._swap:
            for p, home in zip(self._params, self._home, strict=True):
                p.data = home
        elif self._home:
            torch._foreach_copy_(self._home, self._saved)

    def moved(self) -> bool:
        """Whether any weight is elsewhere than at ``w``: reads from the device."""
        home = self._home if self._swap else self._saved
        return any(not torch.equal(local(p).detach(), w) for p, w in zip(self._params, home, strict=True))

    def _invalidate_caches(self) -> None:
        """Drop what was derived from the old weights: casts of an enclosing autocast, FSDP's gathered weights."""
        torch.clear_autocast_cache()
        if not self._swap and any(map(sharded, self._params)):
            for m in self._modules:
                reshard: Any = getattr(m, "reshard", None)
                if reshard is not None:
                    reshard()


class Swappable:
    """Whether the parameters' storage may be swapped. Checked again only when one of them has moved in memory.

    Each must be an ordinary tensor with its own storage, and no compiled graph may have recorded its address.

    Arguments:
        model: the model that they belong to.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._compiled = any(_compiled(m) for m in model.modules())
        self._params: Sequence[Tensor] = ()
        self._addresses: list[int] = []
        self._answer = False

    def __call__(self, params: Sequence[Tensor]) -> bool:
        """Whether these parameters may be swapped."""
        if self._compiled or self._model._compiled_call_impl is not None:  # it may be compiled later
            return False
        addresses = [*map(Tensor.data_ptr, params)]
        if params is not self._params or addresses != self._addresses:
            self._params, self._addresses = params, addresses
            plain = PLAIN.issuperset(map(type, params))
            self._answer = plain and _owns_storage(params, addresses) and not self._shared(params)
        return self._answer

    def _shared(self, params: Sequence[Tensor]) -> bool:
        """Whether another tensor of the model has the memory of one of these, and would not move with it."""
        mine = set(params)
        every = itertools.chain(self._model.parameters(), self._model.buffers())
        others = {t.untyped_storage().data_ptr() for t in every if t not in mine and type(t) in PLAIN}
        return any(p.data_ptr() in others for p in params if p.data_ptr())


def _compiled(module: nn.Module) -> bool:
    """Whether torch.compile made this module: CUDA graphs record the addresses of the weights."""
    return module._compiled_call_impl is not None or "_orig_mod" in module._modules


def _owns_storage(params: Sequence[Tensor], addresses: list[int]) -> bool:
    """Whether each has a storage of its own and uses all of it."""
    known = [a for a in addresses if a]
    whole = all(p.untyped_storage().nbytes() == p.numel() * p.element_size() for p in params)
    return whole and len(set(known)) == len(known)


def _add_into(values: list[Tensor], home: list[Tensor]) -> list[Tensor]:
    """``home + values``, in the memory of ``values`` if the weights can use it."""
    same = all(map(operator.is_, map(get_dtype, values), map(get_dtype, home)))
    if not (same and all(map(operator.eq, map(get_device, values), map(get_device, home)))):
        return [(w + v.to(w.device)).to(w.dtype) for v, w in zip(values, home, strict=True)]
    if values:
        torch._foreach_add_(values, home)
    return values


def _cast_like(values: list[Tensor], home: list[Tensor]) -> list[Tensor]:
    """The values, in the precision and on the device of the weights."""
    return [v.to(w.device, w.dtype) for v, w in zip(values, home, strict=True)]
