"""Habits from libraries whose SAM is the optimizer: each gets an error that says what to write."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import FrozenInstanceError
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def answer_habits(cls: type) -> None:
    """Let a method's class refuse parameters, and explain why its settings do not change."""
    init: Any = cls.__init__  # type: ignore[misc]

    @functools.wraps(init)
    def checked_init(self: Any, *arguments: Any, **settings: Any) -> None:
        refuse_parameters(cls.__name__, arguments, settings)
        init(self, *arguments, **settings)

    setattr(cls, "__init__", checked_init)  # noqa: B010
    setattr(cls, "__setattr__", refuse_change)  # noqa: B010


def refuse_parameters(name: str, arguments: tuple[Any, ...], settings: dict[str, Any]) -> None:
    """Raise a TypeError for ``SAM(model.parameters(), SGD, rho=...)`` and ``SAM(SGD(...), rho=...)``."""
    first = arguments[0] if arguments else settings.get("params")
    kinds = [a if isinstance(a, type) else type(a) for a in (*arguments, *settings.values())]
    bases = [kind for kind in kinds if issubclass(kind, Optimizer)]
    if bases or "params" in settings or (isinstance(first, Iterable) and not isinstance(first, (str, Tensor))):
        base = bases[0].__name__ if bases else "SGD"
        raise TypeError(
            f"{name} takes settings, not parameters. Wrap the optimizer: "
            f"SharpnessAware({base}(model.parameters(), lr=...), {name}(rho=0.05), model)."
        )


def refuse_change(method: Any, name: str, value: Any) -> None:
    """Raise the error of a frozen dataclass, with the remedy."""
    how = ' During training set "rho" in opt.param_groups, or use RhoSchedule.' if name == "rho" else ""
    raise FrozenInstanceError(
        f"A method does not change: build another, {type(method).__name__}({name}={value!r}).{how}"
    )
