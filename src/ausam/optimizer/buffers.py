"""BufferGuard: which pass of a step may change BatchNorm's statistics, the other buffers and frozen parameters.

BatchNorm statistics, spectral-norm vectors and quantisation observers change in every training-mode forward. A step
must change them only once, and all of its passes must start from the same values. Copying and restoring works for all
of them, including custom classes. A frozen parameter is guarded once a forward was seen to change it (MoCo's key
encoder), because most are large and never change.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ausam.common.tensors import get_shape
from ausam.optimizer.parameters import Undo

# Which forward of this step has changed the buffers. The changes of one at shifted weights stay if none at w follows.
BufferUpdate = Literal["none", "perturbed", "clean"]


class Snapshot:
    """A model's buffers at one moment: the tensors, their owners, and a copy of their values.

    The next :meth:`take` reuses its memory. Three kinds of buffers have no copy. An expanded view and a buffer made
    in inference mode cannot be written, and a view of a weight moves with the weights.
    """

    def __init__(self) -> None:
        self._modules: Sequence[nn.Module] = ()
        self._owners: list[dict[str, Tensor | None]] = []  # each module's buffers by name
        self._empty: list[dict[str, Tensor | None]] = []  # of the modules that had none
        self._places: list[tuple[dict[str, Tensor | None], dict[str, Tensor | None]]] = []  # owner, its buffers
        self._all: list[Tensor | None] = []
        self._live: list[Tensor] = []
        self._shapes: list[torch.Size] = []
        self._copies: list[Tensor] = []
        self._frozen: list[tuple[nn.Parameter, Tensor, Tensor]] = []  # the parameter, its tensor and a copy

    def take(self, modules: Sequence[nn.Module], frozen: Sequence[nn.Parameter] = ()) -> None:
        """Copy every buffer of the modules, and these frozen parameters."""
        self._frozen = [(p, p.data, p.data.clone()) for p in frozen] if frozen else []
        now = [*itertools.chain.from_iterable(map(dict.values, self._owners))]
        known = modules is self._modules and len(now) == len(self._all) and all(map(operator.is_, now, self._all))
        if known and [*map(get_shape, self._live)] == self._shapes and not any(self._empty):
            if self._live:
                torch._foreach_copy_(self._copies, self._live)
            return
        self._modules = ()  # an interrupted lookup is not used again
        every = [m._buffers for m in modules]
        self._owners, self._empty = [b for b in every if b], [b for b in every if not b]
        self._places = [(owner, owner.copy()) for owner in self._owners]
        self._all = [b for owner in self._owners for b in owner.values()]
        weights = {_address(p) for m in modules for p in m._parameters.values() if type(p) is nn.Parameter} - {0}
        mine = [b for b in self._all if b is not None and writable(b) and _address(b) not in weights]
        self._live = [b.detach() if b.requires_grad else b for b in mine]
        self._shapes = [b.shape for b in self._live]
        self._copies = [b.detach().clone() for b in self._live]
        self._modules = modules

    def add(self, p: nn.Parameter, data: Tensor) -> None:
        """Copy a frozen parameter, whose tensor was or is this one."""
        self._frozen.append((p, data, data.clone()))

    def restore(self) -> None:
        """Put the same tensors back in the same places (a forward may have replaced one), with the same values."""
        for p, home, value in self._frozen:
            p.data = home.copy_(value)
        for owner, buffers in self._places:
            owner.update(buffers)
        if [*map(get_shape, self._live)] != self._shapes:
            for b, shape in zip(self._live, self._shapes, strict=True):
                b.resize_(shape)
        if self._live:
            torch._foreach_copy_(self._live, self._copies)


class BufferGuard:
    """Lets one pass per step change the buffers: the first with gradient at ``w``, or at shifted weights if none is.

    One guard serves all steps of an optimizer, so its memory is allocated once.
    """

    def __init__(self) -> None:
        self._start = Snapshot()
        self._before_pass = Snapshot()
        self._modules: Sequence[nn.Module] = ()
        self._pending = False
        self._update: BufferUpdate = "none"
        self._frozen: Sequence[nn.Parameter] = ()
        self._marks: list[tuple[Tensor, int]] = []
        self._changing: list[nn.Parameter] = []  # the frozen parameters that a forward has changed

    def begin(self, modules: Sequence[nn.Module], frozen: Sequence[nn.Parameter], undo: Undo) -> None:
        """Remember the buffers as they are when a step begins."""
        self._modules = modules
        self._update, self._pending = "none", False
        if frozen is not self._frozen:
            self._frozen, self._changing = frozen, []
        self._marks = [(p.data, p._version) for p in frozen] if frozen else []
        self._start.take(modules, self._changing)
        undo.append(self._start.restore)

    def before_pass(self, *, training: bool, shifted: bool) -> None:
        """Undo the last pass's changes unless it was allowed them, and make this pass undoable."""
        if self._pending:
            self.undo_last_pass()
        last = self._update
        this: BufferUpdate = "perturbed" if shifted else "clean"
        if not training or last in ("clean", this):
            if self._frozen:
                self._find_changed()
            self._before_pass.take(self._modules, self._changing)
            self._pending = True
            if last != "none":
                self._start.restore()  # this pass sees what the first one saw
            return
        if last == "perturbed":
            self._start.restore()
        self._update = this

    def _find_changed(self) -> None:
        """Notice frozen parameters that the passes so far have changed, and were not known to change."""
        for p, (data, version) in zip(self._frozen, self._marks, strict=True):
            replaced = p.data_ptr() != data.data_ptr()
            if (replaced or p._version != version) and not any(p is q for q in self._changing):
                self._changing.append(p)
                if replaced:  # otherwise the old values are lost, this once
                    self._start.add(p, data)

    def undo_last_pass(self) -> None:
        """Undo the last pass's changes, if they are not kept. Its backward needs the buffers, so call it after."""
        if self._pending:
            self._before_pass.restore()
            self._pending = False


def _address(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def writable_buffers(model: nn.Module) -> list[Tensor]:
    """The model's floating-point buffers, e.g. BatchNorm's statistics. Read-only views are left out."""
    return [b for b in model.buffers() if writable(b) and b.is_floating_point()]


def writable(b: Tensor) -> bool:
    """Whether the buffer can be written: not an expanded view or made in inference mode."""
    overlaps = any(stride == 0 and size > 1 for stride, size in zip(b.stride(), b.shape, strict=True))
    return not overlaps and not b.is_inference()
