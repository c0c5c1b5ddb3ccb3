"""Wrong labels: the samples whose loss stayed high while the others were learnt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ausam.audit.table import Array
from ausam.common.mixture import fit, histogram
from ausam.common.trust import are_apart, groups_apart, threshold, unlearnt_classes

RESAMPLES = 200
VISITS = 3  # fewer say little about a sample


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
    """

    index: Array
    probability: Array
    suggested: Array
    rate: float
    interval: tuple[float, float]
    by_class: tuple[tuple[int, int, int], ...]
    score: Array


def suspects(columns: dict[str, Array], labels: Array | None, guessing: float) -> Suspects:
    """Fit two groups to the averaged losses, and suspect the upper one.

    The moving average is asked first: there, learnt samples have left their early losses behind. If it shows one group,
    as after a training that memorised the wrong labels, the mean over the whole training is asked. Nobody is suspected
    where one group describes the losses as well, where the model has not learnt the data, or in a class of which most
    samples resist. See :func:`ausam.common.trust.groups_apart`.
    """
    often = columns["visits"] >= VISITS
    for name in ("recent", "mean"):
        mean = np.where(often, columns[name], np.nan)
        groups = groups_apart(mean, guessing)
        if groups is not None:
            break
    limit = threshold(groups)
    score = np.where(np.isfinite(mean), 0.0, np.nan)
    suspected, unlearnt = np.zeros(len(mean), bool), np.zeros(len(mean), bool)
    if groups is not None:
        if labels is not None:
            unlearnt = np.isin(labels, unlearnt_classes(mean, limit, labels))
        score = np.where(unlearnt & np.isfinite(mean), 0.0, groups.posterior(mean))
        suspected = (np.nan_to_num(mean) > limit) & ~unlearnt
    index = np.flatnonzero(suspected)
    index = index[np.argsort(-mean[index], kind="stable")]
    guess = columns["guess"][index]
    if labels is not None:
        guess = np.where(guess == labels[index], -1, guess)
    known = max(1, int(np.isfinite(mean).sum()))
    return Suspects(
        index,
        score[index],
        guess,
        len(index) / known,
        _interval(mean, unlearnt, guessing) if len(index) else (0.0, 0.0),
        _by_class(labels, suspected),
        score,
    )


def _interval(mean: Array, unlearnt: Array, guessing: float) -> tuple[float, float]:
    """The 2.5 and 97.5 percentiles of the rate over resampled data sets, each judged as the data set was.

    Bins of the histogram are drawn again, those of unlearnt classes apart: which classes these are stays fixed.
    """
    x, n = histogram(mean)
    taught = histogram(mean, among=~unlearnt)[1]
    rng = np.random.default_rng(0)
    rates = []
    for counts in rng.multinomial(int(n.sum()), np.concatenate([taught, n - taught]) / n.sum(), RESAMPLES):
        of_taught, of_others = counts.reshape(2, -1).astype(np.float64)
        groups = fit(x, of_taught + of_others)
        limit = threshold(groups if groups is not None and are_apart(groups, guessing) else None)
        rates.append(of_taught[np.exp(x) > limit].sum() / counts.sum())
    low, high = np.percentile(rates, (2.5, 97.5))
    return float(low), float(high)


def _by_class(labels: Array | None, suspected: Array) -> tuple[tuple[int, int, int], ...]:
    if labels is None:
        return ()
    n = np.bincount(labels)
    wrong = np.bincount(labels[suspected], minlength=len(n))
    return tuple((c, int(n[c]), int(wrong[c])) for c in range(len(n)) if n[c])
