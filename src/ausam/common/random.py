"""Separate random numbers: the global random state is neither read nor changed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Generator

from ausam.common.tensors import CPU


def generator(*key: int) -> Generator:
    """A generator that is a function of the key alone, e.g. (seed, epoch)."""
    seed = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator(CPU).manual_seed(int(seed) & 0x7FFF_FFFF_FFFF_FFFF)
