"""Journal: how to undo an interrupted step. For each change, in order, it holds the action that undoes it.

An action is appended before its change is made. A signal handler may raise between any two bytecode instructions, even
inside a ``finally``, but not inside a C call. So every action is a C function with its arguments, and one C call undoes
everything. A second signal arrives either before it, when nothing is lost, or after it, when everything is restored.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ausam.common.atomic import Action, exhaust

get_grad = operator.attrgetter("grad")
set_grad = Tensor.grad.__set__  # type: ignore[union-attr]
get_data = operator.attrgetter("data")
set_data = Tensor.data.__set__  # type: ignore[attr-defined]

Journal = list[Action]


def new_journal(kinds: Iterable[str] = ("cpu",)) -> tuple[Journal, Callable[[], Any]]:
    """A journal, and a C function that undoes everything in it, including what is appended later.

    It begins with torch's modes, which a signal may leave switched. A second call of the function does nothing.

    Arguments:
        kinds: the types of the devices whose autocast is restored.
    """
    journal = modes(kinds)
    return journal, functools.partial(exhaust, itertools.starmap(operator.call, journal))


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
