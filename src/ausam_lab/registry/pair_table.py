"""The paper's names of pairs of method and policy: one table for the command line, configs, reports and docs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Pair:
    """A method and a policy, as text with arguments, with the paper's name for the two and their training length."""

    label: str
    method: str
    policy: str = "Full"
    epochs: float = 1.0  # fraction of a comparison's epochs
    batch: float = 1.0  # fraction of its batch size
    average: float | None = None  # decay of averaged weights; None: that of the comparison
    select_epoch: float | None = None  # fraction of the samples that selects the epoch; None: that of the comparison
    name: str = ""  # how it is written, which also names its folder; empty in the table, whose keys are the names


PAIRS = {
    "sgd": Pair("SGD", "Plain"),
    "sam": Pair("SAM", "SAM"),
    "asam": Pair("ASAM", "ASAM"),
    "gsam": Pair("GSAM", "GSAM"),
    "friendly-sam": Pair("Friendly-SAM", "FriendlySAM"),
    "looksam-5": Pair("LookSAM-5", "LookSAM(k=5)"),
    "esam": Pair("ESAM", "ESAM"),
    "saf": Pair("SAF", "SAF"),
    "mesa": Pair("MESA", "MESA"),
    "k-sam": Pair("K-SAM", "KSAM"),
    "g-rst": Pair("G-RST", "RST(p=0.5, gamma=2.0)"),
    "ae-sam": Pair("AE-SAM", "AESAM"),
    "ae-looksam": Pair("AE-LookSAM", "AESAM(inner=LookSAM())"),
    "vsam": Pair("vSAM", "VSAM"),
    "momentum-sam": Pair("Momentum-SAM", "MomentumSAM"),
    "s2-sam": Pair("S2-SAM", "PreviousGradientSAM"),
    "wsam": Pair("WSAM", "WSAM"),
    "functional-sam": Pair("Functional-SAM", "FunctionalSAM"),
    "late-sam-0.1": Pair("Late-SAM-0.1", "RST(p=0.1, schedule='piecewise')"),
    "late-sam-0.25": Pair("Late-SAM-0.25", "RST(p=0.25, schedule='piecewise')"),
    "sam-ascent-0.25": Pair("SAM-ascent-0.25", "SAM(ascent=0.25)"),
    "16-sam": Pair("16-SAM", "SAM(m=16)"),
    "ausam-0.4": Pair("AUSAM-0.4", "SAM", "AUSampling(alpha=0.4)"),
    "ausam-0.5": Pair("AUSAM-0.5", "SAM", "AUSampling(alpha=0.5)"),
    "ausam-0.6": Pair("AUSAM-0.6", "SAM", "AUSampling(alpha=0.6)"),
    "ausam-0.7": Pair("AUSAM-0.7", "SAM", "AUSampling(alpha=0.7)"),
    "sam+random": Pair("SAM+Random", "SAM", "Random(alpha=0.5)"),
    "sgd+random": Pair("SGD+Random", "Plain", "Random(alpha=0.5)"),
    "sgd+info": Pair("SGD+Info", "Plain", "InfoBatch"),
    "sam+info*": Pair("SAM+Info*", "SAM", "InfoBatch(on='first')"),
    "sam+info": Pair("SAM+Info", "SAM", "InfoBatch(on='second')"),
}


class Family(NamedTuple):
    """Pairs that differ in one number: ``sam-ascent-0.25`` is ``SAM(ascent=0.25)``."""

    name: str  # with {} for the number
    label: str
    number: str  # a regular expression
    method: str
    argument: str
    others: dict[str, Any]  # arguments that all of them have


PART = r"0?\.\d*[1-9]\d*"

# By the form in help texts: SAM in the last fraction P of training only, its ascent on a fraction P of each batch, and
# groups of M samples.
FAMILIES = {
    "late-sam-P": Family("late-sam-{}", "Late-SAM-{}", PART, "RST", "p", {"schedule": "piecewise"}),
    "sam-ascent-P": Family("sam-ascent-{}", "SAM-ascent-{}", PART, "SAM", "ascent", {}),
    "M-sam": Family("{}-sam", "{}-SAM", r"[1-9]\d*", "SAM", "m", {}),
}

BASE_LABELS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}

# The reference of quantised rows: not a separate pair, and not part of "every pair".
FULL = "full"

# SAM with the paper's policy, and with one that sets the highest scores aside: NAME-ALPHA.
AUSAM: dict[str, tuple[str, dict[str, float]]] = {
    "ausam": ("AUSAM", {}),
    "ausam-trim": ("AUSAM-trim", {"ema": 0.5, "trim": 0.8}),
}

# Short names of policies in names of pairs; the others use the name of their class.
SHORT = {"balanced": "ClassBalanced", "info": "InfoBatch"}

NUMBER = r"0?\.\d+|1(?:\.0+)?"  # an alpha


def method_of(text: str) -> str:
    """The method of a pair without selection, in the table or of a family; empty if the name is not one."""
    name = text.lower()
    if name in PAIRS and PAIRS[name].policy == "Full":
        return PAIRS[name].method
    for family in FAMILIES.values():
        if match := re.fullmatch(family.name.format(f"({family.number})"), name):
            given = {family.argument: float(match[1]) if "." in match[1] else int(match[1]), **family.others}
            return f"{family.method}({', '.join(f'{k}={v!r}' for k, v in given.items())})"
    return ""


# What follows ~ in a name: the setting, and its value if none is written.
KEPT = {"ema": ("average", 0.99), "best": ("select_epoch", 0.1)}


def kept_suffix(average: float | None, select_epoch: float | None) -> str:
    """What follows ``~`` in the name of a pair with these settings."""
    values = {"average": average, "select_epoch": select_epoch}
    return "".join(
        f"~{word}" + ("" if values[setting] == usual else f"{values[setting]:.12g}")
        for word, (setting, usual) in KEPT.items()
        if values[setting]
    )
