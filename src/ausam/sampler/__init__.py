"""The batch sampler that a policy drives: it chooses before loading, keeps the scores and shares them over ranks."""

from __future__ import annotations

from ausam.sampler.batch_sampler import SelectiveBatchSampler
from ausam.sampler.indexed import Indexed
from ausam.sampler.scores import Scores
from ausam.sampler.stream import SelectiveStream

__all__ = [
    "Indexed",
    "Scores",
    "SelectiveBatchSampler",
    "SelectiveStream",
]
