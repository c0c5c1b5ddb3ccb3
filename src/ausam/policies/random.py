"""A random subset of every mini-batch: the control that every other policy has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from ausam.common.settings import Part, validate
from ausam.common.tensors import CPU
from ausam.policies.base import Choice, everything, part, race

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


@dataclass(frozen=True)
class Random:
    """Keep ``max(1, int(alpha n))`` of the ``n`` samples of each mini-batch, all equally likely, in every epoch.

    The paper's SAM+Random, with alpha 0.5.

    >>> from ausam import Random, SelectiveBatchSampler
    >>> [len(batch) for batch in SelectiveBatchSampler(10, batch_size=4, policy=Random(alpha=0.5))]
    [2, 2, 1]

    Arguments:
        alpha: fraction of each mini-batch to keep, in (0, 1].

    The mean gradient stays unbiased, so no weights are needed.
    """

    alpha: Part = 0.5
    signal: ClassVar[str] = "loss"
    scope: ClassVar[str] = "batch"
    period: ClassVar[int] = 1
    decay: ClassVar[float] = 1.0
    spread: ClassVar[bool] = False

    def __post_init__(self) -> None:
        validate(self)

    @property
    def kept(self) -> float:
        """Fraction of the samples used."""
        return self.alpha

    def count(self, epoch: int, n: int) -> int:  # noqa: ARG002
        """A fraction alpha in every epoch."""
        return part(self.alpha, n)

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:  # noqa: ARG002
        """A draw with equal odds for all."""
        if self.alpha == 1:
            return everything(candidates)
        return race(
            torch.ones(candidates.shape, dtype=torch.float32, device=CPU), part(self.alpha, candidates.shape[1]), rng
        )
