"""The verdict of an audit: what the training says about the data, and what to do, in a few sentences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ausam.audit.learning import Redundant
from ausam.audit.suspects import Suspects
from ausam.audit.table import Array

UNFITTED = 0.5  # of the loss of guessing: above it, the median sample is not fitted
ENOUGH = 4  # visits of the median sample
LITTLE = 0.25  # share of redundant samples below which a choice has little to save


@dataclass(frozen=True)
class Verdict:
    """What to do with the data.

    Attributes:
        kind: "unfitted", "too short", "wrong labels", "redundant" or "nothing".
        sentences: the verdict in words.
        pair: the pair of method and policy to try, as ``ausam compare`` spells it; empty if none.
    """

    kind: str
    sentences: tuple[str, ...]
    pair: str

    def __str__(self) -> str:
        return " ".join(self.sentences)


def fitted(last: Array, guessing: float) -> bool:
    """Whether the network has fitted its data: the median of the latest losses is below half the loss of guessing.

    The median, because a share of wrong labels may keep a high loss for good.

    >>> import numpy as np
    >>> fitted(np.array([0.1, 0.2, 3.0]), guessing=2.3), fitted(np.array([1.5, 1.6, 1.7]), guessing=2.3)
    (True, False)
    """
    seen = last[np.isfinite(last)]
    return bool(len(seen)) and float(np.median(seen)) < UNFITTED * guessing


def verdict(columns: dict[str, Array], wrong: Suspects, easy: Redundant, guessing: float) -> Verdict:
    """Underfitting first: before the network fits the data, no score means anything."""
    if not fitted(columns["last"], guessing):
        level = float(np.nanmedian(columns["last"])) if np.isfinite(columns["last"]).any() else guessing
        return Verdict(
            "unfitted",
            (
                f"Your model has not fitted the data: half of the samples still have a loss above {level:.2f}, where "
                f"guessing has {guessing:.2f}.",
                "Train longer, or use SGD with smaller batches, before you choose samples or look for wrong labels.",
            ),
            "",
        )
    if float(np.median(columns["visits"])) < ENOUGH:
        return Verdict(
            "too short",
            (
                f"The training was too short to judge the data: half of the samples were seen fewer than {ENOUGH} "
                "times.",
                "Train for more epochs.",
            ),
            "",
        )
    if len(wrong.index):
        low, high = wrong.interval
        pair = "sam x Trusted(alpha=0.5)"
        return Verdict(
            "wrong labels",
            (
                f"About {100 * wrong.rate:.1f} % of the labels look wrong (95 % interval {100 * low:.1f} to "
                f"{100 * high:.1f}).",
                f"Look at the {len(wrong.index):,} suspects first. To train without them, try {pair}.",
            ),
            pair,
        )
    if easy.share >= LITTLE:
        return Verdict(
            "redundant",
            (
                f"No wrong labels stand out. {100 * easy.share:.0f} % of the samples were learnt at once and never "
                "lost.",
                f"A choice can save time here: try alpha {easy.alpha:g}, beside a random part of the same size.",
            ),
            f"sam x Trusted(alpha={easy.alpha:g})",
        )
    return Verdict(
        "nothing",
        (
            "No wrong labels stand out, and few samples are redundant.",
            "Choosing samples is not likely to help here: train on all of them.",
        ),
        "",
    )
