"""What a saved state must look like: one rule per entry, and everything is checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Rule = Callable[[Any], bool]

REMEDY = "Load the state that sampler.state_dict() returned, or start again without it."


def require(state: Any, name: str, rules: dict[str, Rule]) -> None:
    """Refuse anything but a dict whose entries follow the rules; further entries are ignored."""
    if not isinstance(state, dict):
        raise refuse(f"{name} is a {type(state).__name__}, not a dict")
    for key, holds in rules.items():
        if key not in state:
            raise refuse(f'{name} has no "{key}"')
        if not holds(state[key]):
            raise refuse(f'"{key}" in {name} cannot be {state[key]!r:.80}')


def refuse(what: str) -> ValueError:
    """The error for a state that no sampler has saved."""
    return ValueError(f"The saved state of the sampler cannot be loaded: {what}. {REMEDY}")


# -- rules: whether a value may stand there ------------------------------------------------------------------------


def anything(value: Any) -> bool:  # noqa: ARG001
    """Checked elsewhere."""
    return True


def flag(value: Any) -> bool:
    """True or False."""
    return isinstance(value, bool)


def whole(low: int = 0, high: float = torch.inf) -> Rule:
    """A whole number in this range."""
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _dense(value: Any) -> bool:
    """A tensor with a value in every place."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta


def column(n: int, *dtypes: torch.dtype, least: float = -torch.inf) -> Rule:
    """A vector of ``n`` numbers of such a type, none below ``least`` (or NaN, if ``least`` is finite)."""

    def holds(value: Any) -> bool:
        is_column = _dense(value) and value.shape == (n,) and value.dtype in dtypes
        return is_column and (least == -torch.inf or bool((value >= least).all()))

    return holds


def weights(n: int) -> Rule:
    """None, or a vector of ``n`` finite weights."""
    known = column(n, torch.float32, least=0.0)
    return lambda value: value is None or (known(value) and bool(value.isfinite().all()))
