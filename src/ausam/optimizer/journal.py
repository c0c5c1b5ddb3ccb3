"""Journal: how to undo an interrupted step; each change is recorded before it is made.

A signal handler may raise between any two bytecode instructions, even inside a ``finally``, but not inside a C call. So
every entry is a C function with its arguments, and one C call undoes all entries. A second signal arrives either before
it, when nothing is lost, or after it, when everything is restored.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ausam.common.atomic import Action, commit, exhaust

get_grad = operator.attrgetter("grad")
set_grad = Tensor.grad.__set__  # type: ignore[union-attr]
get_data = operator.attrgetter("data")
set_data = Tensor.data.__set__  # type: ignore[attr-defined]


class Journal:
    """The changes of one step, each with its inverse. It begins with torch's modes, which a signal may leave switched.

    Arguments:
        kinds: the types of the devices whose autocast is restored.
    """

    __slots__ = ("_entries", "undo")

    def __init__(self, kinds: Iterable[str] = ("cpu",)) -> None:
        self._entries: list[Action] = modes(kinds)
        # A C function that undoes everything, including later entries; a second call does nothing.
        self.undo: Callable[[], Any] = functools.partial(exhaust, itertools.starmap(operator.call, self._entries))

    def note(self, undo: Callable[..., Any], *arguments: Any) -> None:
        """Record that ``undo(*arguments)`` undoes the next change. C functions only: see the module docstring."""
        self._entries.append((undo, *arguments))

    def note_all(self, *entries: Action) -> None:
        """Several at once, undone in this order."""
        self._entries += entries

    def note_first(self, undo: Callable[..., Any], *arguments: Any) -> None:
        """The same, to be undone before everything that was noted earlier."""
        self._entries.insert(0, (undo, *arguments))

    def note_each(self, undo: Callable[..., Any], *columns: Iterable[Any]) -> None:
        """The same, row by row, with one argument from each column."""
        self._entries.append((exhaust, map(undo, *columns)))

    def commit(self, actions: Sequence[Action]) -> None:
        """Make the step's final changes and clear the journal, in one C call: all or nothing."""
        commit([*actions, (self._entries.clear,)])


def modes(kinds: Iterable[str]) -> list[Action]:
    """Actions that restore gradient mode and autocast: its switch, precision, cache and nesting."""
    # There is no function that reads the nesting. Up and down again in one C call, so that no signal comes in between.
    _, depth = map(operator.call, [torch.autocast_increment_nesting, torch.autocast_decrement_nesting])
    return [
        (torch._C._set_grad_enabled, torch.is_grad_enabled()),
        *((torch.set_autocast_enabled, kind, torch.is_autocast_enabled(kind)) for kind in kinds),
        *((torch.set_autocast_dtype, kind, torch.get_autocast_dtype(kind)) for kind in kinds),
        (torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled()),
        (torch.autocast_increment_nesting,),  # so that at least one decrement leads to the old depth
        (exhaust, iter(torch.autocast_decrement_nesting, depth)),
        (torch.clear_autocast_cache,),
    ]
