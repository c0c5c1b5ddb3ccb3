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


def indices(n: int, *, repeats: bool) -> Rule:
    """Indices of a dataset of ``n`` samples, each once unless they may repeat."""

    def holds(value: Any) -> bool:
        if not _dense(value) or value.dim() != 1 or value.dtype not in (torch.int32, torch.int64):
            return False
        inside = not len(value) or 0 <= int(value.min()) <= int(value.max()) < n
        return inside and (repeats or len(torch.unique(value)) == len(value))

    return holds


# -- the state of a sampler ----------------------------------------------------------------------------------------


def validate_state(state: Any, n: int) -> None:
    """Refuse a sampler's state that is not whole; its scores and signal are the sampler's to compare."""
    numbers = dict.fromkeys(("seed", "epoch", "picked", "picks"), whole())
    parts = dict.fromkeys(("scores", "plan", "choice"), anything)
    signal = {"signal": lambda value: isinstance(value, str)}
    require(state, "the state", {**numbers, "updated": flag, **signal, **parts})
    choice, plan = state["choice"], state["plan"]
    if choice is not None:
        mask = column(n, torch.bool)
        require(choice, "choice", {"order_id": whole(-1), "mask": mask, "weight": weights(n), "draws": anything})
        if choice["draws"] is not None:
            require(choice, "choice", {"draws": indices(n, repeats=True)})
    if plan is not None:
        scopes = ("batch", "slice") if choice is None else ("batch", "slice", "epoch")
        repeats = choice is not None and choice["draws"] is not None
        require(
            plan,
            "plan",
            {
                **dict.fromkeys(("epoch", "seed", "order_id", "next"), whole()),
                **dict.fromkeys(("offered", "size", "kept"), whole(1, n)),
                "samples": whole(n, n),
                "start": whole(0, n - 1),
                "total": whole(1),
                "done": whole(),
                "shuffle": flag,
                "scope": lambda value: value in scopes,
                "index": indices(n, repeats=repeats),
                "weight": anything,
            },
        )
        require(plan, "plan", {"done": whole(0, plan["total"] - 1), "weight": weights(len(plan["index"]))})
