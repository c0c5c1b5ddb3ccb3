"""The optimizer axis: one file a method, each a frozen dataclass with one function, ``gradient(run)``."""

from __future__ import annotations

from ausam.methods.asam import ASAM
from ausam.methods.plain import Plain
from ausam.methods.sam import SAM

METHODS = {m.__name__: m for m in (Plain, SAM, ASAM)}

__all__ = ["ASAM", "METHODS", "SAM", "Plain"]
