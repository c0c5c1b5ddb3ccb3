"""The rows of a comparison by name: a table of the paper's pairs, and any method with any policy.

A row is written as a name of the table, or as ``METHOD(...) + POLICY(...)``, the two as in Python. Your own classes are
``module:Class(...)``. After either may follow ``~ema`` or ``~best``, then ``@F`` or ``@FxB``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated

from ausam.common.settings import Range, validate
from ausam_lab.names.expressions import canonical, parse
from ausam_lab.names.lookup import nearest
from ausam_lab.names.user_code import is_own

Fraction = Annotated[float, Range(low=0.0, high=1.0, low_open=True, high_open=True)]
Share = Annotated[float, Range(low=0.0, high=10.0, low_open=True)]


@dataclass(frozen=True)
class Pair:
    """A method and a policy, as text with arguments, with a name for the two and their training length."""

    label: str
    method: str
    policy: str = "Full"
    epochs: Share = 1.0  # fraction of a comparison's epochs
    batch: Share = 1.0  # fraction of its batch size
    average: Fraction | None = None  # decay of averaged weights; None: that of the comparison
    select_epoch: Fraction | None = None  # fraction of the samples that selects the epoch; None: that of the comparison
    full_precision: bool = False  # the row that quantised rows start from
    name: str = ""  # as it was written, which also names its folder; empty in the table, whose keys are the names

    def __post_init__(self) -> None:
        validate(self)

    @property
    def kind(self) -> str:
        """What the row is in a comparison.

        ``own``: the user's code. ``contender``: it chooses samples by their scores. ``baseline``: it costs as little as
        one of those without any scores. ``method``: anything else.
        """
        if is_own(self.method) or is_own(self.policy):
            return "own"
        policy = parse("policy", self.policy).name
        if policy in ("Trusted", "AUSampling"):
            return "contender"
        subset = policy in ("Random", "Repeated", "ClassBalanced")
        return "baseline" if subset or (self.epochs, self.batch) != (1.0, 1.0) else "method"


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
    "ae-looksam": Pair("AE-LookSAM", "AESAM(inner=LookSAM)"),
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
    "ausam-trim-0.5": Pair("AUSAM-trim-0.5", "SAM", "AUSampling(alpha=0.5, ema=0.5, trim=0.8)"),
    "sam+trusted": Pair("SAM+Trusted", "SAM", "Trusted(alpha=0.5)"),
    "sam+random": Pair("SAM+Random", "SAM", "Random(alpha=0.5)"),
    "sgd+random": Pair("SGD+Random", "Plain", "Random(alpha=0.5)"),
    "sam+balanced": Pair("SAM+Balanced", "SAM", "ClassBalanced(alpha=0.5)"),
    "sgd+info": Pair("SGD+Info", "Plain", "InfoBatch"),
    "sam+info*": Pair("SAM+Info*", "SAM", "InfoBatch(on='first')"),
    "sam+info": Pair("SAM+Info", "SAM", "InfoBatch(on='second')"),
}

# The reference of quantised rows: not part of "every pair".
FULL = "full"
FULL_PRECISION = Pair("Full prec.", "Plain", full_precision=True)

BASE_LABELS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}

FORM = 'as in Python, "SAM(rho=0.1) + AUSampling(alpha=0.5)"'

NUMBER = r"\d*\.?\d+"
WRITTEN = re.compile(
    rf"(?P<name>.+?)\s*(?P<suffix>(~ema(?P<ema>{NUMBER})?)?(~best(?P<best>{NUMBER})?)?"
    rf"(@(?P<epochs>{NUMBER})(x(?P<batch>{NUMBER}))?)?)",
    re.IGNORECASE | re.DOTALL,
)
AVERAGE, SELECT_EPOCH = 0.99, 0.1  # what ~ema and ~best mean without a number

# A plus sign that is not inside parentheses.
PLUS = re.compile(r"\+(?![^(]*\))")


def pair(text: str) -> Pair:
    """The row written as a name of the table or as ``METHOD(...) + POLICY(...)``, with what may follow either.

    A method alone uses every sample: ``LookSAM(k=10)``. The left side may also be a name of the table without a policy:
    ``sgd + Random(alpha=0.25)``. Then may follow, in this order:

    - ``~ema`` evaluates averaged weights (``~ema0.999``: with this decay, otherwise 0.99).
    - ``~best`` keeps the epoch that is best on a tenth of the training samples, which are held out (``~best0.2``: a
      fifth).
    - ``@F`` trains for a fraction F of the epochs, ``@FxB`` also with a fraction B of the batch size, at the same
      learning rate. ``sam@0.5x0.5`` takes as many steps as ``ausam-0.5``, with as many samples each.
    """
    match = WRITTEN.fullmatch(text.strip())
    if match is None:
        raise _unknown(text)
    whole, suffix = _whole(match["name"]), match["suffix"].lower()
    try:
        row = replace(
            whole,
            epochs=float(match["epochs"] or 1),
            batch=float(match["batch"] or 1),
            average=float(match["ema"] or AVERAGE) if "~ema" in suffix else None,
            select_epoch=float(match["best"] or SELECT_EPOCH) if "~best" in suffix else None,
            name=whole.name + suffix,
        )
    except ValueError as error:
        raise ValueError(f'"{text}": {error}') from None
    changes = _changes(row)
    return replace(row, label=f"{whole.label} ({changes})") if changes else row


def _changes(row: Pair) -> str:
    """What follows the name of a row, in words: ``half the epochs, half batch``."""
    words = []
    if row.average is not None:
        words.append("averaged weights" + ("" if row.average == AVERAGE else f" {row.average:g}"))
    if row.select_epoch is not None:
        words.append("best epoch" + ("" if row.select_epoch == SELECT_EPOCH else f" on {row.select_epoch:g}"))
    if row.epochs != 1:
        words.append({0.5: "half the epochs", 2.0: "twice the epochs"}.get(row.epochs, f"{row.epochs:g} × the epochs"))
    if row.batch != 1:
        words.append({0.5: "half batch", 2.0: "double batch"}.get(row.batch, f"batch × {row.batch:g}"))
    return ", ".join(words)


def _whole(text: str) -> Pair:
    """The row without what follows it."""
    if text.lower() == FULL:
        return replace(FULL_PRECISION, name=FULL)
    if known := PAIRS.get(text.lower()):
        return replace(known, name=text.lower())
    left, right = [*(part.strip() for part in PLUS.split(text, maxsplit=1)), ""][:2]
    beside = PAIRS.get(left.lower())
    try:
        method = beside.method if beside is not None and beside.policy == "Full" else canonical("method", left)
        policy = canonical("policy", right) if right else "Full"
    except ValueError as error:
        if text.lower().startswith(nearest(text, PAIRS) or "+") or not (right or "(" in text or is_own(text)):
            raise _unknown(text) from None
        raise ValueError(f'"{text}": {error} Any two are written {FORM}.') from None
    # the label has a user's own class without the folders of its file
    label = " + ".join(re.sub(r"^[^(]*/", "", part) for part in (method, policy) if part != "Full")
    return Pair(label, method, policy, name=text)


def _unknown(text: str) -> ValueError:
    near = nearest(text, PAIRS)
    meant = f"Did you mean {near}? " if near else ""
    return ValueError(f'There is no pair "{text}". {meant}Write a name of the table, or {FORM}. See ausam list.')


def label(name: str, base: str) -> str:
    """The label of a row. "SGD" is replaced by the base optimizer if that is another."""
    return pair(name).label.replace("SGD", BASE_LABELS[base])
