"""Which samples of each mini-batch to use: one file per policy, three pruning rules in one."""

from __future__ import annotations

from ausam.policies.ausampling import AUSampling
from ausam.policies.base import Policy
from ausam.policies.classbalanced import ClassBalanced
from ausam.policies.full import Full
from ausam.policies.infobatch import InfoBatch
from ausam.policies.orderdp import OrderDP
from ausam.policies.pruning import UCB, EpsilonGreedy, Uncertainty
from ausam.policies.random import Random
from ausam.policies.repeated import Repeated
from ausam.policies.signals import SIGNALS
from ausam.policies.toploss import TopLoss
from ausam.policies.trusted import Trusted
from ausam.policies.weighted import Weighted

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
