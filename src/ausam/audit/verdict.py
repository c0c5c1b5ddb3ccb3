"""The verdict of an audit: what the training says about the data, and what to do, in a few sentences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ausam.audit.learning import Redundant, by_heart
from ausam.audit.suspects import VISITS, Suspects
from ausam.audit.table import Array

UNFITTED = 0.5  # of the loss of guessing: above it, the median sample is not fitted
ENOUGH, MANY = 4, 10  # visits of the median sample: to judge it at all, and to tell hard from wrong
LITTLE = 0.25  # share of redundant samples below which a choice has little to save
FEW = 0.01  # share of samples that need not be judged
PAIR = "SAM(ascent=0.5) + Trusted(alpha=0.67)"  # best at SGD's price where labels are wrong (docs/results.md)
HEART = (
    "The network agrees with nearly all labels now, but learnt many of them late: it may know wrong ones by heart, and "
    "then their recent losses do not give them away."
)


@dataclass(frozen=True)
class Verdict:
    """What to do with the data.

    Attributes:
        kind: "unfitted", "too short", "wrong labels", "by heart", "redundant" or "nothing".
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


def verdict(
    columns: dict[str, Array], wrong: Suspects, easy: Redundant, guessing: float, *, trusted: bool = False
) -> Verdict:
    """Underfitting first: before the network fits the data, no score means anything."""
    if not columns["visits"].any():
        return Verdict("too short", ("No sample was seen: call audit.update with the feedback of every step.",), "")
    trusted_ones = np.delete(columns["last"], wrong.index)  # many wrong labels would lift the median
    if not fitted(trusted_ones, guessing):
        level = float(np.nanmedian(trusted_ones)) if np.isfinite(trusted_ones).any() else guessing
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
        return _wrong_labels(columns, wrong, trusted)
    if by_heart(columns):
        return Verdict(
            "by heart",
            (
                "No wrong labels stand out, which says little here.",
                HEART,
                "audit.suspects().loss, over the whole training here, still ranks them: look at the highest first. To "
                "know more, train with SAM, or for fewer epochs.",
            ),
            "",
        )
    if easy.share >= LITTLE:
        learnt = (
            f"No wrong labels stand out. {100 * easy.share:.0f} % of the samples were learnt at once and never lost."
        )
        if trusted:
            return Verdict("redundant", (learnt, "Trusted draws them less often already."), "")
        choice = f"A choice can save time here: try alpha {easy.alpha:g}, beside a random part of the same size."
        return Verdict("redundant", (learnt, choice), f"SAM + Trusted(alpha={easy.alpha:g})")
    return Verdict(
        "nothing",
        (
            "No wrong labels stand out, and few samples are redundant.",
            "Choosing samples is not likely to help here: train on all of them.",
        ),
        "",
    )


def _wrong_labels(columns: dict[str, Array], wrong: Suspects, trusted: bool) -> Verdict:
    low, high = wrong.interval
    pair = "" if trusted else PAIR
    advice = "Trusted draws them less often already." if trusted else f"To train without them, try {pair}."
    sentences = [
        f"About {100 * wrong.rate:.1f} % of the labels look wrong (95 % interval {100 * low:.1f} to {100 * high:.1f}).",
        f"Look at the {len(wrong.index):,} suspects first. {advice}",
    ]
    if (visits := float(np.median(columns["visits"]))) < MANY:
        sentences.append(f"After {visits:.0f} visits of a sample, hard ones are among them: look before you act.")
    seen = columns["visits"] > 0
    seldom = float((columns["visits"][seen] < VISITS).mean())
    if seldom > FEW:
        sentences.append(
            f"{100 * seldom:.0f} % of the samples were seen fewer than {VISITS} times and are not judged"
            + (", and Trusted seldom draws what it suspects: ask sampler.suspects(), too." if trusted else ".")
        )
    if by_heart(columns):
        sentences.append(f"There may be more. {HEART}")
    return Verdict("wrong labels", tuple(sentences), pair)
