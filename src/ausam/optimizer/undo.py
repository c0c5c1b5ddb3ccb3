"""Undo: how to restore what an unfinished step has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

Action = Callable[[], Any]


class Undo:
    """Actions that restore the state before a step. Each is added before its change is made.

    Torch's gradient mode and autocast, which an interrupted context may leave switched, are restored at the end.

    Arguments:
        kinds: the types of the devices whose autocast is restored.
    """

    def __init__(self, kinds: Iterable[str] = ("cpu",)) -> None:
        self._grad = torch.is_grad_enabled()
        self._autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]
        self._cache = torch.is_autocast_cache_enabled()
        self._actions: list[Action] = []
        self.append = self._actions.append  # before the change that the action undoes
        self.remove = self._actions.remove  # when its change is undone already

    def restore(self) -> None:
        """Undo every change, the last one first: the weights come before buffers and gradients."""
        while self._actions:
            self._actions[-1]()
            self._actions.pop()
        self.restore_grad_mode()
        for kind, enabled, dtype in self._autocast:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(self._cache)
        torch.clear_autocast_cache()

    def restore_grad_mode(self) -> None:
        """Switch gradients on or off, as they were."""
        if torch.is_grad_enabled() != self._grad:
            torch.set_grad_enabled(self._grad)
