"""Checked numbers, and random numbers of our own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ausam.settings import Range, holding


def count(name: str, value: Any, low: int = 1) -> int:
    """A whole number of at least ``low``, or an error."""
    number: int = holding("diagnostics", name, value, Range(low=low, whole=True))
    return number


def positive(name: str, value: Any) -> float:
    """A finite number above 0, or an error."""
    return float(holding("diagnostics", name, value, Range(low=0.0, low_open=True)))


def generator(seed: int) -> torch.Generator:
    """A generator of our own: torch's global random numbers stay as they are."""
    return torch.Generator().manual_seed(count("seed", seed, low=0))


def normal(n: int, rng: torch.Generator, like: Tensor) -> Tensor:
    """A vector of standard normal numbers, drawn on the CPU so that it is the same on every device."""
    return torch.randn(n, generator=rng, dtype=torch.float64).to(like.device, like.dtype)
