"""ausam: sharpness-aware minimisation at the cost of SGD, and the labels that look wrong.

It has two axes. Every SAM variant is a gradient estimator for :class:`SharpnessAware`, every selection method is a
policy for :class:`SelectiveBatchSampler`, and :class:`Feedback` holds the per-sample losses between them.
"""

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
    WSAM,
    FriendlySAM,
    FunctionalSAM,
    LookSAM,
    MomentumSAM,
    Plain,
    PreviousGradientSAM,
)
from ausam.optimizer import Method, RhoSchedule, SharpnessAware, Step
from ausam.pairing import check
from ausam.policies import (
    POLICIES,
    SIGNALS,
    UCB,
    AUSampling,
    ClassBalanced,
    EpsilonGreedy,
    Full,
    InfoBatch,
    OrderDP,
    Policy,
    Random,
    Repeated,
    TopLoss,
    Trusted,
    Uncertainty,
    Weighted,
)
from ausam.sampler import Indexed, Scores, SelectiveBatchSampler, SelectiveStream

__version__ = "0.4.0"

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
    "SIGNALS",
    "UCB",
    "VSAM",
    "WSAM",
    "AUSampling",
    "ClassBalanced",
    "EpsilonGreedy",
    "Feedback",
    "FriendlySAM",
    "Full",
    "FunctionalSAM",
    "Indexed",
    "InfoBatch",
    "LookSAM",
    "Method",
    "MomentumSAM",
    "OrderDP",
    "Plain",
    "Policy",
    "PreviousGradientSAM",
    "Random",
    "Repeated",
    "RhoSchedule",
    "Scores",
    "SelectiveBatchSampler",
    "SelectiveStream",
    "SharpnessAware",
    "Step",
    "TopLoss",
    "Trusted",
    "Uncertainty",
    "Weighted",
    "check",
]
