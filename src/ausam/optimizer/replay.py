"""Replay: later passes of a step draw the random numbers of the first, so dropout masks agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ausam.optimizer.journal import Journal

States = dict[torch.device, Tensor]


class Replay:
    """Draws torch's random numbers once per step: later passes reuse the first pass's, hence its dropout masks."""

    def __init__(self) -> None:
        self._first: States | None = None

    def call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], on: Iterable[Tensor], journal: Journal
    ) -> Any:
        """Call the function with the first call's random numbers; torch's generators end where that call left them."""
        now = torch_states(t.device for t in on)
        if self._first is None:
            self._first = now
            return function(*arguments)
        journal.append((torch.default_generator.set_state, now[torch.device("cpu")]))
        set_torch_states(self._first)
        result = function(*arguments)
        set_torch_states(now)
        return result


def torch_states(devices: Iterable[torch.device]) -> States:
    """The state of torch's own generators, of the CPU and of these devices."""
    on = {d: torch.get_device_module(d).get_rng_state(d) for d in set(devices) if d.type not in ("cpu", "meta")}
    return {torch.device("cpu"): torch.get_rng_state(), **on}


def set_torch_states(states: States) -> None:
    """Let torch's own generators continue from these states."""
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)
