"""The selection axis: a batch sampler, its scores, and one file per policy."""

from __future__ import annotations

from ausam.selection.ausampling import AUSampling
from ausam.selection.classbalanced import ClassBalanced
from ausam.selection.dataset import Indexed
from ausam.selection.epsilongreedy import EpsilonGreedy
from ausam.selection.full import Full
from ausam.selection.infobatch import InfoBatch
from ausam.selection.orderdp import OrderDP
from ausam.selection.policy import Policy
from ausam.selection.random import Random
from ausam.selection.repeated import Repeated
from ausam.selection.sampler import SelectiveBatchSampler
from ausam.selection.scores import Scores
from ausam.selection.signals import SIGNALS
from ausam.selection.stream import SelectiveStream
from ausam.selection.toploss import TopLoss
from ausam.selection.ucb import UCB
from ausam.selection.uncertainty import Uncertainty

POLICIES = {
    p.__name__: p
    for p in (
        Full,
        Random,
        Repeated,
        ClassBalanced,
        AUSampling,
        InfoBatch,
        OrderDP,
        TopLoss,
        Uncertainty,
        EpsilonGreedy,
        UCB,
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
    "Indexed",
    "InfoBatch",
    "OrderDP",
    "Policy",
    "Random",
    "Repeated",
    "Scores",
    "SelectiveBatchSampler",
    "SelectiveStream",
    "TopLoss",
    "Uncertainty",
]
