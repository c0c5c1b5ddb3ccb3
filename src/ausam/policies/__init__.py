"""Which samples of each mini-batch to use: one file per policy, three pruning rules in one.

``contrib`` holds the policies that no table of the paper uses.
"""

from __future__ import annotations

from ausam.policies.ausampling import AUSampling
from ausam.policies.base import Policy
from ausam.policies.contrib.classbalanced import ClassBalanced
from ausam.policies.contrib.orderdp import OrderDP
from ausam.policies.contrib.pruning import UCB, EpsilonGreedy, Uncertainty
from ausam.policies.contrib.repeated import Repeated
from ausam.policies.contrib.toploss import TopLoss
from ausam.policies.contrib.weighted import Weighted
from ausam.policies.full import Full
from ausam.policies.infobatch import InfoBatch
from ausam.policies.random import Random
from ausam.policies.signals import SIGNALS
from ausam.policies.trusted import Trusted

POLICIES = {
    p.__name__: p
    for p in (
        Full,
        Random,
        Repeated,
        ClassBalanced,
        AUSampling,
        Trusted,
        InfoBatch,
        OrderDP,
        TopLoss,
        Uncertainty,
        EpsilonGreedy,
        UCB,
        Weighted,
    )
}

__all__ = [
    "POLICIES",
    "SIGNALS",
    "UCB",
    "AUSampling",
    "ClassBalanced",
    "EpsilonGreedy",
    "Full",
    "InfoBatch",
    "OrderDP",
    "Policy",
    "Random",
    "Repeated",
    "TopLoss",
    "Trusted",
    "Uncertainty",
    "Weighted",
]
