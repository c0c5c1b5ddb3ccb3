"""Random numbers of our own: global random state is neither read nor touched, but to replay it on request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Generator, Tensor


def generator(*key: int) -> Generator:
    """A generator that is a function of the key alone, e.g. (seed, epoch)."""
    seed = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(seed) & 0x7FFF_FFFF_FFFF_FFFF)


States = dict[torch.device, Tensor]


def torch_states(devices: Iterable[torch.device]) -> States:
    """The state of torch's own generators, of the CPU and of these devices."""
    on = {d: torch.get_device_module(d).get_rng_state(d) for d in set(devices) if d.type not in ("cpu", "meta")}
    return {torch.device("cpu"): torch.get_rng_state(), **on}


@contextlib.contextmanager
def replayed(states: States) -> Iterator[None]:
    """Inside, torch's generators go on from these states; afterwards, from where they were."""
    before = torch_states(states)
    _set(states)
    try:
        yield
    finally:
        _set(before)


def _set(states: States) -> None:
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)
