"""Random numbers: our own generators, which leave torch's global state alone, and a replay of the user's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from ausam.common.tensors import CPU


def generator(*key: int) -> Generator:
    """A generator that is a function of the key alone, e.g. (seed, epoch)."""
    seed = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator(CPU).manual_seed(int(seed) & 0x7FFF_FFFF_FFFF_FFFF)


class Replay:
    """Draws the user's random numbers once per step: later passes reuse the first pass's, hence its dropout masks.

    These are torch's, and those of Python's ``random`` and of ``numpy.random``.
    """

    def __init__(self) -> None:
        self._first: RandomStates | None = None

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], on: Iterable[Tensor]) -> Any:
        """Call the function with the first call's random numbers. The generators end where that call left them."""
        now = _random_states({t.device for t in on})
        if self._first is None:
            self._first = now
            return function(*arguments)
        try:
            _set_random_states(self._first)
            return function(*arguments)
        finally:
            _set_random_states(now)


RandomStates = tuple[dict[torch.device, Tensor], Any, Any]


def _random_states(devices: set[torch.device]) -> RandomStates:
    """The state of torch's own generators, of the CPU and of these devices, of Python's and of NumPy's."""
    on = {d: torch.get_device_module(d).get_rng_state(d) for d in devices if d.type not in ("cpu", "meta")}
    return {torch.device("cpu"): torch.get_rng_state(), **on}, random.getstate(), np.random.get_state()  # noqa: NPY002


def _set_random_states(states: RandomStates) -> None:
    of_torch, of_python, of_numpy = states
    random.setstate(of_python)
    np.random.set_state(of_numpy)  # noqa: NPY002
    for device, state in of_torch.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)
