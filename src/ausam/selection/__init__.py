"""The selection axis: a batch sampler, its scores, and one file a policy."""

from __future__ import annotations

from ausam.selection.ausampling import AUSampling
from ausam.selection.dataset import Indexed
from ausam.selection.full import Full
from ausam.selection.policy import Policy
from ausam.selection.random import Random
from ausam.selection.sampler import SelectiveBatchSampler
from ausam.selection.scores import Scores

POLICIES = {p.__name__: p for p in (Full, Random, AUSampling)}

__all__ = ["POLICIES", "AUSampling", "Full", "Indexed", "Policy", "Random", "Scores", "SelectiveBatchSampler"]
