"""Use every sample: ordinary shuffled mini-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Generator, Tensor

from ausam.policies.base import Choice, everything

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


@dataclass(frozen=True)
class Full:
    """No selection: every sample of every mini-batch, in a new order each epoch.

    >>> from ausam import Full, SelectiveBatchSampler
    >>> sorted(i for batch in SelectiveBatchSampler(5, batch_size=2, policy=Full()) for i in batch)
    [0, 1, 2, 3, 4]

    Use it for baselines: the sampler still shuffles, counts epochs and resumes exactly.
    """

    signal: ClassVar[str] = "loss"
    scope: ClassVar[str] = "batch"
    period: ClassVar[int] = 1
    decay: ClassVar[float] = 1.0
    spread: ClassVar[bool] = False
    kept: ClassVar[float] = 1.0

    def count(self, epoch: int, n: int) -> int:  # noqa: ARG002
        """All of them."""
        return n

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:  # noqa: ARG002
        """All of them."""
        return everything(candidates)
