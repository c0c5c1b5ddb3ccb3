"""What a saved state must look like: everything is checked before anything is loaded."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from ausam.sampler.plan import EpochChoice, Plan

WHOLE_NUMBERS = ("seed", "epoch", "picked", "picks")
FLAGS = ("updated",)
REST = ("signal", "scores", "plan", "choice")

REMEDY = "Load the state that sampler.state_dict() returned, or start again without it."


def refuse(what: str) -> ValueError:
    """The error for a state that no sampler has saved."""
    return ValueError(f"The saved state of the sampler cannot be loaded: {what}. {REMEDY}")


def require_keys(state: Any, keys: tuple[str, ...], name: str) -> None:
    """Refuse anything but a dict with at least these keys."""
    if not isinstance(state, dict):
        raise refuse(f"{name} is a {type(state).__name__}, not a dict")
    for key in keys:
        if key not in state:
            raise refuse(f'{name} has no "{key}"')


def require_count(value: Any, name: str, low: int = 0, high: float = torch.inf) -> None:
    """Refuse anything but a whole number in this range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise refuse(f"{name} is {value!r}, not a whole number {f'>= {low}' if high == torch.inf else 'in its range'}")


def require_flag(value: Any, name: str) -> None:
    """Refuse anything but True and False."""
    if not isinstance(value, bool):
        raise refuse(f"{name} is {value!r}, not True or False")


def require_column(value: Any, name: str, n: int | None, dtypes: tuple[torch.dtype, ...]) -> None:
    """Refuse anything but a vector of ``n`` numbers of such a type."""
    if not isinstance(value, Tensor) or value.dim() != 1 or value.dtype not in dtypes:
        raise refuse(f"{name} is not a vector of {' or '.join(map(str, dtypes))}")
    if n is not None and len(value) != n:
        raise refuse(f"{name} has {len(value)} entries instead of {n}")


def require_weights(value: Any, name: str, n: int) -> None:
    """Refuse anything but None and a vector of ``n`` finite weights."""
    if value is not None:
        require_column(value, name, n, (torch.float32,))
        if not (value.isfinite() & (value >= 0)).all():
            raise refuse(f"{name} contains a weight that is negative or not finite")


def require_indices(value: Any, name: str, n: int, *, repeats: bool = False) -> None:
    """Refuse anything but indices of the dataset, each once unless they may repeat."""
    require_column(value, name, None, (torch.int32, torch.int64))
    if len(value) and not 0 <= int(value.min()) <= int(value.max()) < n:
        raise refuse(f"{name} contains an index outside the dataset of {n} samples")
    if not repeats and len(torch.unique(value)) != len(value):
        raise refuse(f"{name} contains an index twice")


def validate_state(state: Any, n: int) -> None:
    """Refuse a sampler's state that is not whole; its scores and signal are the sampler's to compare."""
    require_keys(state, (*WHOLE_NUMBERS, *FLAGS, *REST), "the state")
    for name in WHOLE_NUMBERS:
        require_count(state[name], name)
    for name in FLAGS:
        require_flag(state[name], name)
    if not isinstance(state["signal"], str):
        raise refuse(f"signal is {state['signal']!r}, not a name")
    if state["choice"] is not None:
        _validate_choice(state["choice"], n)
    if state["plan"] is not None:
        _validate_plan(state["plan"], state["choice"], n)


def _validate_choice(choice: Any, n: int) -> None:
    require_keys(choice, tuple(field.name for field in fields(EpochChoice)), "choice")
    require_count(choice["order_id"], "choice.order_id", low=-1)
    require_column(choice["mask"], "choice.mask", n, (torch.bool,))
    require_weights(choice["weight"], "choice.weight", n)
    if choice["draws"] is not None:
        require_indices(choice["draws"], "choice.draws", n, repeats=True)


def _validate_plan(plan: Any, choice: Any, n: int) -> None:
    require_keys(plan, (*(field.name for field in fields(Plan)), "done", "next", "index", "weight"), "plan")
    for name in ("epoch", "seed", "order_id", "next"):
        require_count(plan[name], f"plan.{name}")
    require_count(plan["samples"], "plan.samples", n, n)
    for name in ("offered", "size", "kept"):
        require_count(plan[name], f"plan.{name}", 1, n)
    require_count(plan["total"], "plan.total", 1)
    require_count(plan["start"], "plan.start", 0, n - 1)
    require_count(plan["done"], "plan.done", 0, plan["total"] - 1)
    require_flag(plan["shuffle"], "plan.shuffle")
    if plan["scope"] not in ("batch", "epoch", "slice"):
        raise refuse(f"plan.scope is {plan['scope']!r}")
    if plan["scope"] == "epoch" and choice is None:
        raise refuse("it is in the middle of an epoch whose choice is missing")
    repeats = choice is not None and choice["draws"] is not None
    require_indices(plan["index"], "plan.index", n, repeats=repeats)
    require_weights(plan["weight"], "plan.weight", len(plan["index"]))
