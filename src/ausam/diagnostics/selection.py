"""Which samples were selected, how often, and how long a sample waited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ausam.diagnostics.arguments import count
from ausam.diagnostics.statistics import Array, array


def effective_sample_size(weights: Any) -> float:
    """Kish's effective sample size: the number of equally weighted samples that would be as informative.

        (sum w)^2 / sum w^2

    >>> from ausam.diagnostics import effective_sample_size
    >>> effective_sample_size([1, 1, 1, 1]), effective_sample_size([3, 0, 0, 0])
    (4.0, 1.0)

    Arguments:
        weights: one number >= 0 per sample, not all 0, e.g. visits, probabilities or importance weights.
    """
    w = array(weights)
    if w.ndim != 1 or not len(w) or w.min() < 0 or not w.max() > 0:
        raise ValueError("weights must hold one number >= 0 per sample, and at least one above 0.")
    w = w / w.max()
    return float(w.sum() ** 2 / (w * w).sum())


@dataclass(frozen=True)
class Group:
    """How often a group of samples was visited.

    Attributes:
        name: name of the group.
        samples: number of samples in it.
        visits: mean number of visits per sample.
        share: visits per sample relative to the average sample; above 1, the group is preferred.
    """

    name: str
    samples: int
    visits: float
    share: float


@dataclass(frozen=True)
class Selection:
    """Which samples were selected, over the epochs.

    Attributes:
        samples, epochs: number of samples in the data set, and of epochs recorded.
        visits: how often each sample was used.
        mean, fewest, most: mean, smallest and largest number of visits.
        effective: effective sample size of the visits as a fraction of the data; 1 if all were used equally often.
        longest_gap: for each sample, the longest run of epochs in which it was not used, including both ends.
        worst_gap: the largest of these.
        never: number of samples that were never used.
        groups: visits by class, by clean or wrong label and by score, where these were given.
    """

    samples: int
    epochs: int
    visits: tuple[int, ...]
    mean: float
    fewest: int
    most: int
    effective: float
    longest_gap: tuple[int, ...]
    worst_gap: int
    never: int
    groups: Mapping[str, tuple[Group, ...]]


def selection(
    chosen: Sequence[Any],
    samples: int,
    *,
    classes: Any = None,
    wrong: Any = None,
    scores: Any = None,
    bins: int = 5,
) -> Selection:
    """Which samples are selected, how often, and how long a sample waits.

    >>> from ausam.diagnostics import selection
    >>> chosen = selection([[0, 1, 2], [0, 1], [0, 3]], samples=4, classes=[0, 0, 1, 1])
    >>> chosen.visits, chosen.worst_gap
    ((3, 2, 1, 1), 2)
    >>> [(g.name, g.visits) for g in chosen.groups["class"]]
    [('0', 2.5), ('1', 1.0)]

    Arguments:
        chosen: for each epoch, the dataset indices that were used, as a list, array or tensor.
        samples: number of samples in the data set, >= 1.
        classes: label of each sample, or None.
        wrong: whether each sample's label is wrong, or None.
        scores: score of each sample (``sampler.scores.mean``), or None; split into groups of equal size.
        bins: number of these groups, >= 1.

    Cost: epochs x samples operations.
    """
    n = count("samples", samples)
    if not chosen:
        raise ValueError("chosen is empty. Pass the dataset indices that each epoch used.")
    visits, gap, waiting = np.zeros(n, int), np.zeros(n, int), np.zeros(n, int)
    for epoch in chosen:
        index = array(epoch).astype(int)
        if len(index) and not (index.min() >= 0 and index.max() < n):
            raise ValueError(f"chosen holds indices outside the data set of {n} samples.")
        used = np.bincount(index, minlength=n)
        visits += used
        waiting = np.where(used > 0, 0, waiting + 1)
        gap = np.maximum(gap, waiting)
    groups: dict[str, tuple[Group, ...]] = {}
    if classes is not None:
        label = _column("classes", classes, n)
        groups["class"] = tuple(_group(f"{c:g}", label == c, visits) for c in np.unique(label))
    if wrong is not None:
        bad = _column("wrong", wrong, n) != 0
        both = [("clean", ~bad), ("wrong", bad)]
        groups["label"] = tuple(_group(name, mask, visits) for name, mask in both if mask.any())
    if scores is not None:
        score = _column("scores", scores, n)
        known = np.flatnonzero(~np.isnan(score))
        ordered = known[np.argsort(score[known], kind="stable")]
        parts = [p for p in np.array_split(ordered, min(count("bins", bins), max(1, len(ordered)))) if len(p)]
        names = [f"{score[p[0]]:.3g} to {score[p[-1]]:.3g}" for p in parts]
        groups["score"] = tuple(
            _group(name, np.isin(np.arange(n), p), visits) for name, p in zip(names, parts, strict=True)
        )
    return Selection(
        samples=n,
        epochs=len(chosen),
        visits=tuple(int(v) for v in visits),
        mean=float(visits.mean()),
        fewest=int(visits.min()),
        most=int(visits.max()),
        effective=effective_sample_size(visits) / n if visits.any() else 0.0,
        longest_gap=tuple(int(g) for g in gap),
        worst_gap=int(gap.max()),
        never=int((visits == 0).sum()),
        groups=groups,
    )


def _column(name: str, values: Any, n: int) -> Array:
    column = array(values)
    if column.shape != (n,):
        raise ValueError(f"{name} has shape {column.shape}, but one value per sample ({n}) is needed.")
    return column


def _group(name: str, mask: Any, visits: Any) -> Group:
    mean, every = float(visits[mask].mean()), float(visits.mean())
    return Group(name, int(mask.sum()), mean, mean / every if every else float("nan"))
