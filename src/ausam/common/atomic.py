"""Several changes in one C call: all are made, or none if a signal arrives.

A signal handler may raise between any two bytecode instructions, but not inside a C call. So every change is a C
function with its arguments, and one C call runs them all.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

Action = tuple[Any, ...]  # a C function and its arguments

# exhaust(map(f, x, y)) calls a C function f for each row of the columns x and y in one C call: for all rows, or for
# none if a signal arrives.
exhaust: Callable[[Iterable[Any]], Any] = functools.partial(deque, maxlen=0)


def commit(actions: Iterable[Action]) -> None:
    """Call each C function with its arguments: all or nothing. Prepare everything that can fail before."""
    exhaust(itertools.starmap(operator.call, list(actions)))
