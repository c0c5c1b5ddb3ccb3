"""vSAM's quota of sampled steps per window, which follows how fast a term changes: pure functions.

``memory`` holds the quota, how much of it is used, and windows over the last sampled steps. It is not changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from ausam.common.tensors import CPU, TINY


def renew(memory: Mapping[str, Any], alpha1: float, alpha2: float, most: int) -> dict[str, Any]:
    """The quota of the next window, within [1, most], still unused."""
    change = alpha1 * drift(memory.get("ratios")) + alpha2 * drift(memory.get("variances"))
    return {"quota": max(1.0, min(memory["quota"] * (1.0 + change), float(most))), "used": 0}


def due(memory: Mapping[str, Any], position: int, window: int, rng: Generator) -> bool:
    """Whether the step at ``position`` of the window is sampled: drawn, or needed to meet the quota in time."""
    missing: int = int(memory["quota"]) - memory["used"]
    drawn = float(torch.rand((), generator=rng, device=CPU)) < memory["quota"] / window
    return bool(missing > 0 and drawn) or window - position <= missing


def observe(memory: Mapping[str, Any], term: Tensor, gradient: Tensor, window: int, blocks: int) -> dict[str, Tensor]:
    """The windows with one more sampled step: norms of the term, their ratios to the gradient's norm, and variances.

    Once the window of norms is full, the variance is the mean over ``blocks`` equal parts of the sorted norms.
    """
    norms = push(memory.get("norms"), term, window)
    seen = {"norms": norms, "ratios": push(memory.get("ratios"), term / (gradient + TINY), window)}
    if len(norms) == window:
        size = window // blocks
        variance = norms.sort().values[: blocks * size].view(blocks, size).var(dim=1).mean()
        seen["variances"] = push(memory.get("variances"), variance, window)
    return seen


def push(values: Tensor | None, value: Tensor, length: int) -> Tensor:
    """The last ``length`` of the values and one more, on the device of the new one."""
    if values is None:
        return value[None]
    return torch.cat([values.to(value.device), value[None]])[-length:]


def drift(values: Tensor | None) -> float:
    """Mean relative change from one value to the next, within [-1, 1]; 0 with fewer than two values."""
    if values is None:
        return 0.0
    changes = values.diff() / values[:-1]
    good = changes.isfinite()
    # No boolean indexing, because the size of its result would have to be read from the device.
    mean = torch.where(good, changes, 0.0).sum() / good.sum().clamp(min=1)
    return float(mean.clamp(-1.0, 1.0)) if len(changes) else 0.0
