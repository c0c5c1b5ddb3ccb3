"""The factor of each sample's loss, for policies that reweight."""

from __future__ import annotations

import torch
from torch import Tensor

from ausam.common.tensors import CPU


class Weights:
    """One factor per sample. Takes four bytes per sample once a policy sets a weight, and nothing before.

    Arguments:
        n: number of samples.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._table: Tensor | None = None

    def clear(self, table: Tensor | None = None) -> None:
        """Discard all factors, or replace them by a table for every sample."""
        self._table = table

    def put(self, index: Tensor, weight: Tensor) -> None:
        """Set the factors of these samples."""
        if self._table is None:
            self._table = torch.ones(self._n, dtype=torch.float32, device=CPU)
        self._table.scatter_(0, index, weight.to(self._table.dtype))  # half the time of indexing

    def of(self, index: Tensor) -> Tensor | None:
        """The factors of these samples, 1 where none was set; None if none was set at all."""
        if self._table is None:
            return None
        return self._table[index.to("cpu", torch.int64)].to(index.device)
