"""ausam: sharpness-aware minimisation at the price of SGD.

Two axes that meet in one record: every SAM variant is a gradient estimator of :class:`SharpnessAware`, every selection
method a policy of :class:`SelectiveBatchSampler`, and :class:`Feedback` carries the per-sample losses between them.
"""

from ausam.check import check
from ausam.feedback import Feedback
from ausam.methods import (
    AESAM,
    ASAM,
    ESAM,
    GSAM,
    KSAM,
    MESA,
    METHODS,
    RST,
    SAF,
    SAM,
    VSAM,
    FriendlySAM,
    LookSAM,
    MomentumSAM,
    Plain,
)
from ausam.optimizer import SharpnessAware
from ausam.selection import (
    POLICIES,
    UCB,
    AUSampling,
    EpsilonGreedy,
    Full,
    Indexed,
    InfoBatch,
    Policy,
    Random,
    Scores,
    SelectiveBatchSampler,
    SelectiveStream,
    TopLoss,
    Uncertainty,
)
from ausam.step import Method, Step

__version__ = "0.1.0"

__all__ = [
    "AESAM",
    "ASAM",
    "ESAM",
    "GSAM",
    "KSAM",
    "MESA",
    "METHODS",
    "POLICIES",
    "RST",
    "SAF",
    "SAM",
    "UCB",
    "VSAM",
    "AUSampling",
    "EpsilonGreedy",
    "Feedback",
    "FriendlySAM",
    "Full",
    "Indexed",
    "InfoBatch",
    "LookSAM",
    "Method",
    "MomentumSAM",
    "Plain",
    "Policy",
    "Random",
    "Scores",
    "SelectiveBatchSampler",
    "SelectiveStream",
    "SharpnessAware",
    "Step",
    "TopLoss",
    "Uncertainty",
    "check",
]
