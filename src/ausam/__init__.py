"""ausam: sharpness-aware minimisation at the price of SGD.

Two axes that meet in one record: every SAM variant is a gradient estimator of :class:`SharpnessAware`, every selection
method a policy of :class:`SelectiveBatchSampler`, and :class:`Feedback` carries the per-sample losses between them.
"""

from ausam.check import check
from ausam.feedback import Feedback
from ausam.methods import ASAM, METHODS, SAM, Plain
from ausam.optimizer import SharpnessAware
from ausam.run import Method, Run
from ausam.selection import POLICIES, AUSampling, Full, Indexed, Policy, Random, Scores, SelectiveBatchSampler

__version__ = "0.1.0"

__all__ = [
    "ASAM",
    "METHODS",
    "POLICIES",
    "SAM",
    "AUSampling",
    "Feedback",
    "Full",
    "Indexed",
    "Method",
    "Plain",
    "Policy",
    "Random",
    "Run",
    "Scores",
    "SelectiveBatchSampler",
    "SharpnessAware",
    "check",
]
