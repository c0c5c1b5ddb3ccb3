"""BufferGuard: which pass of a step may move BatchNorm's statistics and the other buffers.

BatchNorm statistics, spectral-norm vectors and quantisation observers move in every training-mode forward, but a step
may move them only once. Copying and restoring is right for all of them, custom classes too.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ausam.journal import Journal

get_shape = operator.attrgetter("shape")


class Moved(enum.Enum):
    """Which forward of this step has moved the buffers."""

    NOT_YET = enum.auto()
    AWAY = enum.auto()  # one at shifted weights: it stands if no pass at w comes
    HERE = enum.auto()


class Snapshot:
    """The buffers of a model at one moment: the tensors, where they hang, and a copy of their values.

    Its memory is used again at the next :meth:`take`. A buffer that cannot be written (an expanded view, one made in
    inference mode) or does not exist yet (a lazy module's) has no copy: no forward pass can have written it.
    """

    def __init__(self) -> None:
        self._owners: list[dict[str, Tensor | None]] = []
        self._names: list[str] = []
        self._buffers: list[Tensor | None] = []
        self._live: list[Tensor] = []
        self._shapes: list[torch.Size] = []
        self._copies: list[Tensor] = []
        self._modules: Sequence[nn.Module] = ()
        self._ids: list[int] = []

    def take(self, modules: Sequence[nn.Module]) -> None:
        """Copy every buffer of the modules."""
        now = [b for m in modules if m._buffers for b in m._buffers.values()]
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
        # A lazy module makes its buffers in place, so what is known of them holds for this time only.
        self._modules = () if any(b is not None and is_lazy(b) for b in now) else modules

    def restore(self) -> None:
        """The same tensors in the same places (a forward may have replaced one) with the same values."""
        for owner, name, buffer in zip(self._owners, self._names, self._buffers, strict=True):
            owner[name] = buffer
        if self._live:
            for b, shape in zip(self._live, self._shapes, strict=True):
                if b.shape != shape:
                    b.resize_(shape)
            torch._foreach_copy_(self._live, self._copies)

    def note(self, journal: Journal) -> None:
        """Write down how to restore it, in C functions."""
        if self._buffers:
            journal.note_each(operator.setitem, self._owners, self._names, self._buffers)
        if self._live:
            journal.note_each(Tensor.resize_, self._live, self._shapes)
            journal.note(torch._foreach_copy_, self._live, self._copies)


class BufferGuard:
    """Lets one pass of each step move the buffers: the first with gradient at ``w``, or at shifted weights if none is.

    One guard serves all steps of an optimizer, so that its memory is allocated once.
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
        """Take back what the last pass may not have moved, and see to it that this one can be taken back."""
        self.settle()
        if training and self._moved is not Moved.HERE and (not shifted or self._moved is Moved.NOT_YET):
            if self._moved is Moved.AWAY:
                self._start.restore()
            self._moved = Moved.AWAY if shifted else Moved.HERE
        else:
            self._before_pass.take(self._modules)
            self._pending = True

    def settle(self) -> None:
        """Take back what the last pass may not have moved; autograd needs the buffers until its backward is over."""
        if self._pending:
            self._before_pass.restore()
            self._pending = False

    def rollback(self) -> None:
        """The buffers as they were when the step began."""
        self._pending = False
        self._start.restore()


def writable(b: Tensor) -> bool:
    """Whether the buffer exists already and can be written: no lazy one, expanded view or tensor of inference mode."""
    if is_lazy(b):
        return False
    overlaps = any(stride == 0 and size > 1 for stride, size in zip(b.stride(), b.shape, strict=True))
    return not overlaps and not b.is_inference()
