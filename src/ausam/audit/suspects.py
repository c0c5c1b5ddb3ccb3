"""Wrong labels: the samples whose loss stayed high while the others were learnt."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ausam.audit.groups import GAIN, Groups, fit, two_groups
from ausam.audit.learning import by_heart
from ausam.audit.table import Array
from ausam.common.mixture import histogram
from ausam.common.trust import EVEN, unlearnt_classes

RESAMPLES = 200
VISITS = 3  # fewer say little about a sample
GAIN_OF_MEAN = 1.0  # the mean over the training also holds the losses from before a sample was learnt


@dataclass(frozen=True)
class Suspects:
    """Samples whose label is probably wrong.

    Attributes:
        index: dataset index of each, most suspect first.
        probability: of each of them, that its label is wrong.
        suggested: of each of them, the class that the network preferred; -1 where it saw no outputs or agrees.
        rate: estimated share of wrong labels.
        interval: 95 % bootstrap interval of the rate. It covers chance, not a wrong model of the losses.
        by_class: (class, samples, suspects) of each class, if labels are known.
        score: of every sample of the data set, the probability that its label is wrong; NaN where it was seldom seen.
        loss: of every sample, the averaged loss that ranks it: over the whole training where labels may be known by
            heart, otherwise the one that is judged; NaN where it was seldom seen. Look at the largest first.
    """

    index: Array
    probability: Array
    suggested: Array
    rate: float
    interval: tuple[float, float]
    by_class: tuple[tuple[int, int, int], ...]
    score: Array
    loss: Array


@dataclass(frozen=True)
class _Rule:
    """What is asked of two groups, and from which loss on a sample is suspected."""

    even: float  # the loss between learnt and not learnt
    gain: float  # least gain in BIC per sample of the upper group

    def limit(self, groups: Groups | None) -> float:
        apart = groups is not None and groups.are_apart(self.even, self.gain)
        return max(EVEN, groups.crossing) if groups is not None and apart else math.inf


def suspects(columns: dict[str, Array], labels: Array | None, guessing: float) -> Suspects:
    """Fit two groups to averaged losses, and suspect the upper one.

    The loss is that of the label against its strongest rival where outputs and labels are known, otherwise the
    cross-entropy. Its moving average is asked: there, learnt samples have left their early losses behind. If the
    training ended with labels known by heart, the mean loss over the whole training is asked first. Nobody is suspected
    where one group describes the losses as well, where the model has not learnt the data, or in a class of which most
    samples resist. See :class:`ausam.audit.groups.Groups`.
    """
    often = columns["visits"] >= VISITS
    rules = list(_rules(columns, often, guessing))
    for name, rule in rules:
        loss = np.where(often, columns[name], np.nan)
        groups = two_groups(loss)
        if math.isfinite(limit := rule.limit(groups)):
            break
    score = np.where(np.isfinite(loss), 0.0, np.nan)
    suspected, unlearnt = np.zeros(len(loss), bool), np.zeros(len(loss), bool)
    if groups is not None and math.isfinite(limit):
        if labels is not None:
            unlearnt = np.isin(labels, unlearnt_classes(loss, limit, labels))
        score = np.where(unlearnt & np.isfinite(loss), 0.0, groups.posterior(loss))
        suspected = (np.nan_to_num(loss) > limit) & ~unlearnt
    index = np.flatnonzero(suspected)
    index = index[np.argsort(-loss[index], kind="stable")]
    guess = columns["guess"][index]
    if labels is not None:
        guess = np.where(guess == labels[index], -1, guess)
    known = max(1, int(np.isfinite(loss).sum()))
    return Suspects(
        index,
        score[index],
        guess,
        len(index) / known,
        _interval(loss, unlearnt, rule, groups) if len(index) else (0.0, 0.0),
        _by_class(labels, suspected),
        score,
        np.where(often, columns[rules[0][0]], np.nan),
    )


def _rules(columns: dict[str, Array], often: Array, guessing: float) -> Iterator[tuple[str, _Rule]]:
    half = max(EVEN, guessing / 2)  # among many classes, a loss above log 2 is not yet bad
    compared = often.any() and np.isfinite(columns["rival"][often]).all()
    if by_heart(columns):
        yield "mean", _Rule(EVEN, GAIN_OF_MEAN)
    yield ("rival", _Rule(EVEN, GAIN)) if compared else ("recent", _Rule(half, GAIN))


def _interval(loss: Array, unlearnt: Array, rule: _Rule, groups: Groups | None) -> tuple[float, float]:
    """The 2.5 and 97.5 percentiles of the rate over resampled data sets, each judged as the data set was.

    Bins of the histogram are drawn again, those of unlearnt classes apart: which classes these are stays fixed.
    """
    x, n = histogram(loss)
    taught = histogram(loss, among=~unlearnt)[1]
    rng = np.random.default_rng(0)
    rates = []
    for counts in rng.multinomial(int(n.sum()), np.concatenate([taught, n - taught]) / n.sum(), RESAMPLES):
        of_taught, of_others = counts.reshape(2, -1).astype(np.float64)
        limit = rule.limit(fit(x, of_taught + of_others, groups))
        rates.append(of_taught[np.exp(x) > limit].sum() / counts.sum())
    low, high = np.percentile(rates, (2.5, 97.5))
    return float(low), float(high)


def _by_class(labels: Array | None, suspected: Array) -> tuple[tuple[int, int, int], ...]:
    if labels is None:
        return ()
    n = np.bincount(labels)
    wrong = np.bincount(labels[suspected], minlength=len(n))
    return tuple((c, int(n[c]), int(wrong[c])) for c in range(len(n)) if n[c])
