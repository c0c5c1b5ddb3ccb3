"""The geometry of a step, and who is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ausam.diagnostics.arguments import count, positive
from ausam.diagnostics.batches import Batch
from ausam.diagnostics.lemma1 import direction
from ausam.diagnostics.objective import LossFn, Objective
from ausam.diagnostics.statistics import Array, array
from ausam.diagnostics.untouched import untouched


@dataclass(frozen=True)
class StepGeometry:
    """How SAM's gradient lies to the plain one.

    Attributes:
        gradient_norm: ``|g|``, at w.
        sam_norm: ``|g_SAM|``, at w + e.
        cosine: ``cos(g, g_SAM)``.
        descent: ``<g, g_SAM> / |g|^2``: how much of a plain step's first-order decrease of the loss SAM's step makes.
        orthogonal: ``sin(g, g_SAM)``: the part of g_SAM's length that does not serve the descent.
        loss, perturbed: mean loss at w and at w + e.
    """

    gradient_norm: float
    sam_norm: float
    cosine: float
    descent: float
    orthogonal: float
    loss: float
    perturbed: float


def step_geometry(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Sequence[Batch],
    rho: float,
    *,
    chunk: int = 256,
    samples: int | None = None,
) -> StepGeometry:
    """SAM's gradient beside the plain one, on the same samples.

        g = grad L(w),   g_SAM = grad L(w + rho g / |g|)

    >>> import torch
    >>> from ausam.diagnostics import step_geometry
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)                           # L(w) = w^2 / 2, so g = w
    >>> found = step_geometry(model, lambda x: model(x).square().sum(1) / 2, [(torch.ones(1, 1),)], rho=0.5)
    >>> round(found.cosine, 4), round(found.descent, 4)
    (1.0, 1.5)

    Arguments:
        model: the network; measured in eval mode, see :func:`ausam.diagnostics.sample_gradients`.
        loss_fn: ``loss_fn(*batch)`` returns the per-sample losses, as for ``opt.backward``.
        batches: the samples, taken together as one batch.
        rho: radius of the perturbation, > 0.
        chunk: samples per pass, >= 1.
        samples: use the first so many samples; None for all.

    Cost: two forward-backwards and two forwards. Memory: 3 x P.
    """
    rho = positive("rho", rho)
    with untouched(model):
        objective = Objective(model, loss_fn, batches, chunk=chunk, samples=samples)
        g = objective.gradient()
        e = rho * direction(g)
        sam = objective.gradient(e)
        loss, perturbed = objective.loss(), objective.loss(e)
    g, sam = g.double(), sam.double()
    size, sam_size = float(torch.linalg.vector_norm(g)), float(torch.linalg.vector_norm(sam))
    inner = float(g @ sam)
    cosine = max(-1.0, min(1.0, inner / (size * sam_size))) if sam_size else float("nan")
    return StepGeometry(
        gradient_norm=size,
        sam_norm=sam_size,
        cosine=cosine,
        descent=inner / size**2,
        orthogonal=(1 - cosine**2) ** 0.5,
        loss=loss,
        perturbed=perturbed,
    )


def effective_sample_size(weights: Any) -> float:
    """Kish's effective sample size: how many equally weighted samples would be as informative.

        (sum w)^2 / sum w^2

    >>> from ausam.diagnostics import effective_sample_size
    >>> effective_sample_size([1, 1, 1, 1]), effective_sample_size([3, 0, 0, 0])
    (4.0, 1.0)

    Arguments:
        weights: one number >= 0 per sample, not all 0: visits, probabilities or importance weights.
    """
    w = array(weights)
    if w.ndim != 1 or not len(w) or w.min() < 0 or not w.max() > 0:
        raise ValueError("weights must be one number of at least 0 per sample, and one of them above 0.")
    w = w / w.max()
    return float(w.sum() ** 2 / (w * w).sum())


@dataclass(frozen=True)
class Group:
    """The visits of some samples.

    Attributes:
        name: which samples.
        samples: how many.
        visits: mean number of visits per sample.
        share: visits of a sample, relative to those of an average one: above 1 the group is preferred.
    """

    name: str
    samples: int
    visits: float
    share: float


@dataclass(frozen=True)
class Selection:
    """Who was chosen, over epochs.

    Attributes:
        samples, epochs: of the data set and of the record.
        visits: how often each sample was used.
        mean, fewest, most: of the visits.
        effective: effective sample size of the visits, as a part of the samples: 1 if all were used equally often.
        longest_gap: of each sample, the most epochs in a row in which it was not used, the ends of the record included.
        worst_gap: the largest of those.
        never: samples that were not used at all.
        groups: visits by class, by clean or wrong label, by score, as far as these were given.
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
    """Who is chosen, how often, and how long a sample waits.

    >>> from ausam.diagnostics import selection
    >>> found = selection([[0, 1, 2], [0, 1], [0, 3]], samples=4, classes=[0, 0, 1, 1])
    >>> found.visits, found.worst_gap
    ((3, 2, 1, 1), 2)
    >>> [(g.name, g.visits) for g in found.groups["class"]]
    [('0', 2.5), ('1', 1.0)]

    Arguments:
        chosen: for each epoch the dataset indices that were used: lists, tensors, or the batches joined.
        samples: number of samples in the data set, >= 1.
        classes: label of each sample, or None.
        wrong: whether each sample's label is wrong, or None.
        scores: score of each sample (``sampler.scores.mean``), or None; cut into groups of equal size.
        bins: how many such groups, >= 1.

    Cost: epochs x samples operations.
    """
    n = count("samples", samples)
    if not chosen:
        raise ValueError("chosen is empty: give the dataset indices that each epoch used.")
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
        raise ValueError(f"{name} has shape {column.shape}, but one value for each of {n} samples is needed.")
    return column


def _group(name: str, mask: Any, visits: Any) -> Group:
    mean, every = float(visits[mask].mean()), float(visits.mean())
    return Group(name, int(mask.sum()), mean, mean / every if every else float("nan"))
