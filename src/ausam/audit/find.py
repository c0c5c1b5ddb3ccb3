"""Find wrong labels in arrays: predictions of any library, or logs of losses. No training is needed."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike

from ausam.audit.table import NEVER, empty_table, judge, keep_best, visit
from ausam.common.label_errors import VISITS, LabelErrors
from ausam.common.margin import against_rival, class_labels, require_columns

TINY = 1e-12  # least probability


def find_label_errors(
    labels: ArrayLike,
    *,
    probabilities: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    losses: ArrayLike | None = None,
) -> LabelErrors:
    """Rank and flag the labels of a data set by predictions, or by the losses of a training.

    >>> import numpy as np
    >>> from ausam.audit import find_label_errors
    >>> labels = np.arange(100) % 4
    >>> p = np.full((100, 4), 0.01)
    >>> p[np.arange(100), np.where(np.arange(100) < 10, (labels + 1) % 4, labels)] = 0.97
    >>> errors = find_label_errors(labels, probabilities=p)
    >>> sorted(errors.index.tolist()), int(errors.likely[errors.index[0]])
    ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 1)

    Arguments:
        labels: class of each sample, from 0.
        probabilities: of each class, shape (samples, classes), best of a network that has not seen the sample (cross
            validation). Or (epochs, samples, classes), as recorded in training.
        logits: instead of probabilities.
        losses: cross-entropy of each sample, shape (samples,), or (epochs, samples), with NaN where a sample was not
            visited. Give exactly one of the three.
    """
    labels = class_labels("find_label_errors", labels)
    given = {"probabilities": probabilities, "logits": logits, "losses": losses}
    values = {name: np.asarray(value, np.float64) for name, value in given.items() if value is not None}
    if len(values) != 1:
        raise TypeError(
            f"find_label_errors got {', '.join(values) or 'no predictions'}. Give exactly one of {', '.join(given)}."
        )
    ((name, value),) = values.items()
    axis = -1 if name == "losses" else -2  # of the samples
    if value.ndim not in (-axis, 1 - axis) or value.shape[axis] != len(labels):
        shape = "(samples,) or (epochs, samples)" if name == "losses" else "(samples, classes)"
        raise ValueError(f"{name} has shape {value.shape} for {len(labels)} labels. Give {shape}.")
    if name == "probabilities":
        if (value < 0).any() or (value > 1 + 1e-3).any():
            raise ValueError("The probabilities are not all between 0 and 1. Pass logits= if they are logits.")
        value = np.log(np.maximum(value, TINY))
    epochs = value[None] if value.ndim == -axis else value
    if name != "losses":
        require_columns(int(labels.max(initial=0)), epochs.shape[-1])
    table, best = empty_table(len(labels)), NEVER
    every, targets = np.arange(len(labels)), torch.from_numpy(labels)
    for scores in epochs:
        loss, rival = scores, np.full(len(labels), -1)
        if name != "losses":
            loss, rival = (t.numpy() for t in against_rival(torch.from_numpy(scores), targets))
        visit(table, every, loss, loss, rival)
        best = keep_best(table, best)
    return judge(table, labels, visits=1 if len(epochs) == 1 else VISITS)
