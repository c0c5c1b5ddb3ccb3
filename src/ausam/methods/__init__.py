"""The optimizer axis: one file per method, each a frozen dataclass with one function, ``gradient(step)``.

``contrib`` holds the methods that no table of the paper uses.
"""

from __future__ import annotations

from ausam.methods.contrib.aesam import AESAM
from ausam.methods.contrib.asam import ASAM
from ausam.methods.contrib.friendly import FriendlySAM
from ausam.methods.contrib.functionalsam import FunctionalSAM
from ausam.methods.contrib.gsam import GSAM
from ausam.methods.contrib.momentumsam import MomentumSAM
from ausam.methods.contrib.previousgradient import PreviousGradientSAM
from ausam.methods.contrib.vsam import VSAM
from ausam.methods.contrib.wsam import WSAM
from ausam.methods.esam import ESAM
from ausam.methods.ksam import KSAM
from ausam.methods.looksam import LookSAM
from ausam.methods.mesa import MESA
from ausam.methods.plain import Plain
from ausam.methods.rst import RST
from ausam.methods.saf import SAF
from ausam.methods.sam import SAM

METHODS = {
    m.__name__: m
    for m in (
        Plain,
        SAM,
        ASAM,
        GSAM,
        FriendlySAM,
        LookSAM,
        ESAM,
        KSAM,
        VSAM,
        SAF,
        MESA,
        RST,
        AESAM,
        MomentumSAM,
        PreviousGradientSAM,
        WSAM,
        FunctionalSAM,
    )
}

__all__ = [
    "AESAM",
    "ASAM",
    "ESAM",
    "GSAM",
    "KSAM",
    "MESA",
    "METHODS",
    "RST",
    "SAF",
    "SAM",
    "VSAM",
    "WSAM",
    "FriendlySAM",
    "FunctionalSAM",
    "LookSAM",
    "MomentumSAM",
    "Plain",
    "PreviousGradientSAM",
]
