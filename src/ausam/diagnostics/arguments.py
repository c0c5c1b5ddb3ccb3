"""Checks for numeric arguments, and random numbers from private generators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ausam.common.settings import Range, checked_value


def count(name: str, value: Any, low: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``low``; raise otherwise."""
    number: int = checked_value("diagnostics", name, value, Range(low=low, whole=True))
    return number


def positive(name: str, value: Any) -> float:
    """Return ``value`` if it is a finite number above 0; raise otherwise."""
    return float(checked_value("diagnostics", name, value, Range(low=0.0, low_open=True)))


def generator(seed: int) -> torch.Generator:
    """A private generator, so that torch's global random state does not change."""
    return torch.Generator().manual_seed(count("seed", seed, low=0))


def normal(n: int, rng: torch.Generator, like: Tensor) -> Tensor:
    """A standard normal vector, drawn on the CPU so that every device gets the same one."""
    return torch.randn(n, generator=rng, dtype=torch.float64).to(like.device, like.dtype)
