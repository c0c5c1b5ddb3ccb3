"""BufferGuard: which pass of a step may change BatchNorm's statistics and the other buffers.

BatchNorm statistics, spectral-norm vectors and quantisation observers change in every training-mode forward, but a
step must change them only once. Copying and restoring works for all of them, including custom classes.
"""

from __future__ import annotations

import enum
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ausam.common.atomic import exhaust
from ausam.optimizer.journal import Journal

get_buffers, get_shape = operator.itemgetter("_buffers"), operator.attrgetter("shape")


class Moved(enum.Enum):
    """Which forward of this step has changed the buffers."""

    NOT_YET = enum.auto()
    AWAY = enum.auto()  # a pass at shifted weights: its changes stay if no pass at w follows
    HERE = enum.auto()


class Snapshot:
    """A model's buffers at one moment: the tensors, their owners, and a copy of their values.

    The next :meth:`take` reuses its memory. A buffer that cannot be written (an expanded view, one made in inference
    mode) or does not exist yet (a lazy module's) has no copy, because no forward pass can have written it.
    """

    def __init__(self) -> None:
        self._owners: list[dict[str, Tensor | None]] = []
        self._names: list[str] = []
        self._buffers: list[Tensor | None] = []
        self._live: list[Tensor] = []
        self._shapes: list[torch.Size] = []
        self._copies: list[Tensor] = []
        self._modules: Sequence[nn.Module] = ()
        self._vars: list[dict[str, Any]] = []  # each module's vars(): avoids the slow Module.__getattr__
        self._ids: list[int] = []

    def take(self, modules: Sequence[nn.Module]) -> None:
        """Copy every buffer of the modules."""
        if modules is not self._modules:
            self._vars = list(map(vars, modules))
        now = list(itertools.chain.from_iterable(map(dict.values, map(get_buffers, self._vars))))
        if (
            modules is self._modules
            and list(map(id, now)) == self._ids
            and list(map(get_shape, self._live)) == self._shapes
        ):
            if self._live:
                torch._foreach_copy_(self._copies, self._live)
            return
        places = [(m._buffers, name) for m in modules for name in m._buffers]
        self._owners, self._names = [d for d, _ in places], [name for _, name in places]
        self._buffers, self._ids = now, list(map(id, now))
        self._live = [b.detach() if b.requires_grad else b for b in now if b is not None and writable(b)]
        self._shapes = list(map(get_shape, self._live))
        self._copies = [b.detach().clone() for b in self._live]
        # A lazy module creates its buffers in place, so this lookup cannot be reused.
        self._modules = () if any(b is not None and is_lazy(b) for b in now) else modules

    def restore(self) -> None:
        """Put the same tensors back in the same places (a forward may have replaced one), with the same values."""
        exhaust(map(operator.setitem, self._owners, self._names, self._buffers))
        if self._live:
            if list(map(get_shape, self._live)) != self._shapes:
                exhaust(map(Tensor.resize_, self._live, self._shapes))
            torch._foreach_copy_(self._live, self._copies)

    def note(self, journal: Journal) -> None:
        """Record how to restore it, using C functions only."""
        if self._buffers:
            journal += [
                (exhaust, map(operator.setitem, self._owners, self._names, self._buffers)),
                (exhaust, map(Tensor.resize_, self._live, self._shapes)),
                *([(torch._foreach_copy_, self._live, self._copies)] if self._live else []),
            ]


class BufferGuard:
    """Lets one pass per step change the buffers: the first with gradient at ``w``, or at shifted weights if none is.

    One guard serves all steps of an optimizer, so its memory is allocated once.
    """

    def __init__(self) -> None:
        self._start = Snapshot()
        self._before_pass = Snapshot()
        self._modules: Sequence[nn.Module] = ()
        self._pending = False
        self._moved = Moved.NOT_YET

    def begin(self, modules: Sequence[nn.Module], journal: Journal) -> None:
        """Remember the buffers as they are when a step begins."""
        self._modules = modules
        self._moved, self._pending = Moved.NOT_YET, False
        self._start.take(modules)
        self._start.note(journal)

    def before_pass(self, *, training: bool, shifted: bool) -> None:
        """Undo the last pass's changes unless it was allowed them, and make this pass undoable."""
        self.undo_last_pass()
        if training and self._moved is not Moved.HERE and (not shifted or self._moved is Moved.NOT_YET):
            if self._moved is Moved.AWAY:
                self._start.restore()
            self._moved = Moved.AWAY if shifted else Moved.HERE
        else:
            self._before_pass.take(self._modules)
            self._pending = True

    def undo_last_pass(self) -> None:
        """Undo the last pass's changes unless it was allowed them: late, because its backward needs the buffers."""
        if self._pending:
            self._before_pass.restore()
            self._pending = False

    def rollback(self) -> None:
        """Restore the buffers to their state at the start of the step."""
        self._pending = False
        self._start.restore()


def writable_buffers(model: nn.Module) -> list[Tensor]:
    """The model's floating-point buffers, e.g. BatchNorm's statistics; read-only views are left out."""
    return [b for b in model.buffers() if writable(b) and b.is_floating_point()]


def writable(b: Tensor) -> bool:
    """Whether the buffer exists and can be written: not lazy, an expanded view or made in inference mode."""
    if is_lazy(b):
        return False
    overlaps = any(stride == 0 and size > 1 for stride, size in zip(b.stride(), b.shape, strict=True))
    return not overlaps and not b.is_inference()
