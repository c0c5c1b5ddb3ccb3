"""Devices by name: one that torch can train on, or an error that lists the available ones."""

from __future__ import annotations

import re

import torch

NAME = re.compile(r"(cpu|cuda|mps|xpu)(?::(\d{1,3}))?")


def device(name: str) -> str:
    """The device of this name ("auto": CUDA if available); a ValueError for a device that is not available."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    match = NAME.fullmatch(name)
    if match is None:
        raise ValueError(f'device is "{name}", which is unknown. Use one of {", ".join(known())}.')
    kind, number = match[1], int(match[2] or 0)
    if (there := _count(kind)) == 0:
        seen = {"cuda": "CUDA", "mps": "MPS", "xpu": "XPU"}[kind]
        raise ValueError(f'device is "{name}", but torch sees no {seen} device here. Use --device cpu.')
    if number >= there:
        raise ValueError(f'device is "{name}", but torch sees {there} of that kind here, counted from 0.')
    return name


def known() -> list[str]:
    """The names of the available devices."""
    return ["auto", *(kind for kind in ("cpu", "cuda", "mps", "xpu") if _count(kind))]


def _count(kind: str) -> int:
    if kind == "cpu":
        return 1
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    return torch.cuda.device_count() if kind == "cuda" else torch.xpu.device_count()
