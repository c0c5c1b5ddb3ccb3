"""The optimizer axis: one file per method, each a frozen dataclass with one function, ``gradient(step)``."""

from __future__ import annotations

from ausam.methods.aesam import AESAM
from ausam.methods.asam import ASAM
from ausam.methods.esam import ESAM
from ausam.methods.friendly import FriendlySAM
from ausam.methods.functionalsam import FunctionalSAM
from ausam.methods.gsam import GSAM
from ausam.methods.ksam import KSAM
from ausam.methods.looksam import LookSAM
from ausam.methods.mesa import MESA
from ausam.methods.momentumsam import MomentumSAM
from ausam.methods.plain import Plain
from ausam.methods.previousgradient import PreviousGradientSAM
from ausam.methods.rst import RST
from ausam.methods.saf import SAF
from ausam.methods.sam import SAM
from ausam.methods.vsam import VSAM
from ausam.methods.wsam import WSAM

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
