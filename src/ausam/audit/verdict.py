"""The verdict of an audit: what the training says about the data, in a few sentences, and what could be skipped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ausam.audit.table import Array
from ausam.common.label_errors import LEARNED, LabelErrors

Kind = Literal["unseen", "unfitted", "diverged", "too short", "wrong labels", "redundant", "nothing"]

UNFITTED = 0.5  # of the chance-level loss: above it, that part is not fitted
ENOUGH, MANY = 4, 10  # visits of the median sample: to say what can be skipped, and to tell hard from wrong
EARLY = 0.1  # learned within this fraction of its visits
FLOOR = 0.1  # odds of a redundant sample, relative to the others, in a draw in proportion to the loss
LITTLE = 0.25  # share of redundant samples below which a choice has little to save


@dataclass(frozen=True)
class Redundant:
    """Samples that were learned early and never forgotten.

    Attributes:
        index: dataset index of each, easiest first (by mean loss).
        share: their share of the visited samples.
        alpha: the fraction of each mini-batch that is left if these samples are drawn a tenth as often. It is rounded
            up to a twentieth. A suggestion to try, not a measurement.
    """

    index: Array
    share: float
    alpha: float


@dataclass(frozen=True)
class Verdict:
    """What a training says about its data.

    Attributes:
        kind: "unseen", "unfitted", "diverged", "too short", "wrong labels", "redundant" or "nothing".
        sentences: the verdict in words.
    """

    kind: Kind
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.sentences)


def redundant(columns: dict[str, Array]) -> Redundant:
    """Samples that the network held from the first tenth of their visits, or from the second visit, to the end."""
    visits, learned = columns["visits"], columns["learned"]
    early = (visits >= ENOUGH) & (learned > 0) & (learned <= np.maximum(2, EARLY * visits))
    index = np.flatnonzero(early & (columns["forgotten"] == 0))
    share = len(index) / max(1, int((visits > 0).sum()))
    alpha = min(1.0, math.ceil(round(20 * (1 - (1 - FLOOR) * share), 9)) / 20)
    return Redundant(index[np.argsort(columns["mean"][index], kind="stable")], share, alpha)


def verdict(columns: dict[str, Array], errors: LabelErrors, easy: Redundant, chance: float) -> Verdict:
    """What is flagged comes first. The ranking is there whatever the verdict."""
    if not columns["visits"].any():
        return Verdict("unseen", ("No sample was seen: call audit.update with the losses of every step.",))
    visits = float(np.median(columns["visits"][columns["visits"] > 0]))
    if len(errors):
        found = f"{len(errors):,} labels look wrong. Review them first."
        found = "1 label looks wrong. Review it first." if len(errors) == 1 else found
        few = f"After only {visits:.0f} visits of a sample, some may be hard and not wrong."
        return Verdict("wrong labels", (found, few) if visits < MANY else (found,))
    # Of a lower quantile, because wrong labels may keep the median high for good.
    level = float(np.nanpercentile(columns["last"], LEARNED))
    if level >= UNFITTED * chance:
        diverged = level > 1.5 * chance
        return Verdict(
            "diverged" if diverged else "unfitted",
            (
                f"The model has not fitted the data: three quarters of the samples have a loss above {level:.2f}, "
                f"where chance has {chance:.2f}.",
                "Lower the learning rate." if diverged else "Train longer, or use SGD with smaller batches.",
                "No label is flagged, and the ranking is rough.",
            ),
        )
    if visits < ENOUGH:
        return Verdict(
            "too short",
            (
                f"No label is flagged, after {visits:.0f} visits of a sample. The ranking shows the most suspect "
                "first. Train for more epochs to know more.",
            ),
        )
    none = "No label is flagged: the losses do not fall into two groups. The ranking shows the most suspect first."
    if easy.share >= LITTLE:
        learned = f"{100 * easy.share:.0f} % of the samples were learned early and never forgotten"
        return Verdict("redundant", (none, f"{learned}, so selection can save time: try alpha {easy.alpha:g}."))
    return Verdict("nothing", (none, "Few samples are redundant: selection is not likely to help."))
