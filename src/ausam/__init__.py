"""ausam: sharpness-aware minimisation at the price of SGD.

It has two axes. Every SAM variant is a gradient estimator for :class:`SharpnessAware`, every selection method is a
policy for :class:`SelectiveBatchSampler`, and :class:`Feedback` carries the per-sample losses between them.
"""

from ausam import _early  # first: torch takes seconds to import
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
    WSAM,
    FriendlySAM,
    FunctionalSAM,
    LookSAM,
    MomentumSAM,
    Plain,
    PreviousGradientSAM,
)
from ausam.optimizer import SharpnessAware
from ausam.rho_schedule import RhoSchedule
from ausam.selection import (
    POLICIES,
    UCB,
    AUSampling,
    ClassBalanced,
    EpsilonGreedy,
    Full,
    Indexed,
    InfoBatch,
    OrderDP,
    Policy,
    Random,
    Repeated,
    Scores,
    SelectiveBatchSampler,
    SelectiveStream,
    TopLoss,
    Uncertainty,
)
from ausam.step import Method, Step

__version__ = "0.2.0"

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
    "Uncertainty",
    "check",
]

_early.end()
