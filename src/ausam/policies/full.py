"""Use every sample: ordinary shuffled mini-batches."""

from __future__ import annotations

from dataclasses import dataclass

from ausam.policies.base import Policy


@dataclass(frozen=True)
class Full(Policy):
    """No selection: every sample of every mini-batch, in a new order each epoch.

    >>> from ausam import Full, SelectiveBatchSampler
    >>> sorted(i for batch in SelectiveBatchSampler(5, batch_size=2, policy=Full()) for i in batch)
    [0, 1, 2, 3, 4]

    Use it for baselines: the sampler still shuffles, counts epochs and resumes exactly.
    """
