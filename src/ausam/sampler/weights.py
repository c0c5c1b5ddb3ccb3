"""The factor of each sample's loss, for policies that weight the samples they keep."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ausam.common.tensors import CPU
from ausam.sampler.checks import index_vector


class Weights:
    """The factor of each sample's loss. Takes four bytes per sample once a policy sets a weight, and nothing before.

    Arguments:
        n: number of samples.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self.table: Tensor | None = None  # the factors of all samples; None if none was set

    def put(self, index: Tensor, weight: Tensor) -> None:
        """Set the factors of these samples."""
        if self.table is None:
            self.table = torch.ones(self._n, dtype=torch.float32, device=CPU)
        self.table.scatter_(0, index, weight.to(self.table.dtype))  # half the time of indexing

    def of(self, index: Any) -> Tensor | None:
        """The factors of these samples, on their device: 1 where none was set; None if none was set at all."""
        if self.table is None:
            return None
        return self.table[index_vector(index, self._n)].to(getattr(index, "device", CPU))
