"""Journal: what must be undone if a step is cut off, written down before it is done.

A signal handler may raise between any two bytecode instructions, inside a ``finally`` too. It cannot run inside a call
of C code. So every entry is a C function with its arguments, and all entries are undone by one C call: a second signal
comes before it, when nothing is lost, or after it, when everything is back.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

get_grad = operator.attrgetter("grad")
set_grad = Tensor.grad.__set__  # type: ignore[union-attr]
get_data = operator.attrgetter("data")
set_data = Tensor.data.__set__  # type: ignore[attr-defined]


Action = tuple[Any, ...]  # a C function and its arguments


class Journal:
    """The changes of one step, each with its inverse."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[Action] = []

    def note(self, undo: Callable[..., Any], *arguments: Any) -> None:
        """Write down that ``undo(*arguments)`` takes back what comes next. Only C functions: see the module's text."""
        self._entries.append((undo, *arguments))

    def note_each(self, undo: Callable[..., Any], *columns: Iterable[Any]) -> None:
        """The same for ``undo`` with one argument out of each column, row by row."""
        self._entries.append(row_by_row(undo, *columns))

    def eraser(self) -> Callable[[], Any]:
        """A C function that undoes everything, entries that are still to come included; the second time, nothing."""
        return functools.partial(deque, itertools.starmap(operator.call, self._entries), 0)

    def commit(self, actions: Sequence[Action]) -> None:
        """Carry out the last changes of the step and forget how to undo any: one C call, so all of it or nothing."""
        deque(itertools.starmap(operator.call, [*actions, (self._entries.clear,)]), 0)


def row_by_row(function: Callable[..., Any], *columns: Iterable[Any]) -> Action:
    """The action that calls a C function with one argument out of each column, row by row."""
    return deque, map(function, *columns), 0


def each(function: Callable[..., Any], *columns: Iterable[Any]) -> None:
    """Call a C function with one argument out of each column, row by row: all rows, or none if a signal comes."""
    deque(map(function, *columns), 0)
