"""The table behind an audit: 24 bytes per sample, updated row by row from the feedback of each step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

Array = NDArray[Any]

# Sums are halved together with the visits before they overflow, which leaves every mean as it was.
ROW = np.dtype(
    [
        ("loss", np.float32),  # sum over visits
        ("difference", np.float16),  # mean of |perturbed - loss|
        ("rival", np.float16),  # moving average of the loss against the strongest rival
        ("recent", np.float16),  # moving average of the loss, without a bias towards the first visits
        ("spread", np.float16),  # standard deviation of the loss over visits
        ("last", np.float16),
        ("visits", np.uint16),
        ("right", np.uint16),  # visits at which the network agreed with the label
        ("learnt", np.uint16),  # visit since which it has always agreed; 0: it does not now
        ("guess", np.uint16),  # the class that it predicted most often, by majority vote (Boyer and Moore)
        ("votes", np.uint8),  # by how many votes
        ("forgotten", np.uint8),  # times that agreement was lost
    ]
)
LAYOUT = ",".join(f"{name}:{ROW[name].str}" for name in ROW.names or ())  # saved with the rows, which are bytes
DECAY = 0.8  # weight of the past in the moving average
# of a new loss in the average, by the number of visits before: without a bias towards the first
WEIGHT = ((1 - DECAY) / (1 - DECAY ** np.arange(1, 200))).astype(np.float32)
MOST = np.iinfo(np.uint16).max
LARGEST = float(np.finfo(np.float16).max)
SURE = math.log(2.0)  # a cross-entropy below it means a probability above 1/2 for the label


def empty_table(n: int) -> Array:
    """A table of ``n`` samples that were never visited."""
    table = np.zeros(n, ROW)
    table["last"] = table["rival"] = np.nan
    return table


def as_words(rows: Array) -> Array:
    """The same memory as three whole numbers per row, which NumPy copies far faster than rows of fields."""
    return rows.view(np.int64).reshape(-1, ROW.itemsize // 8)


def occurrences(index: Array) -> Iterator[Array]:
    """The positions of the first occurrence of every value, then of the second, and so on.

    >>> import numpy as np
    >>> [part.tolist() for part in occurrences(np.array([5, 3, 5, 5]))]
    [[0, 1], [2], [3]]
    """
    order = np.argsort(index, kind="stable")
    begins = np.flatnonzero(np.r_[True, np.diff(index[order]) != 0])[: len(index)]
    number = np.empty(len(index), np.int64)
    number[order] = np.arange(len(index)) - np.repeat(begins, np.diff(np.r_[begins, len(index)]))
    for i in range(int(number.max(initial=-1)) + 1):
        yield np.flatnonzero(number == i)


def visit(rows: Array, loss: Array, difference: Array, rival: Array, right: Array, predicted: Array) -> Array:
    """The rows after one more visit each.

    Arguments:
        rows: the rows before.
        loss: the loss of each sample.
        difference: the absolute change of its loss under the perturbation; NaN if there was none.
        rival: its loss against its strongest rival; NaN where that is not known.
        right: whether the network agreed with the label.
        predicted: the class that the network predicted; -1 where it is not known.
    """
    rows = as_words(rows).copy().view(ROW).reshape(-1)
    if len(full := np.flatnonzero(rows["visits"] == MOST)):
        for name in ("loss", "visits", "right", "learnt"):
            rows[name][full] = rows[name][full] / 2
    # halves are slow to calculate with: each column is widened once
    recent, past, spread, mean_difference = (
        rows[name].astype(np.float32) for name in ("recent", "rival", "spread", "difference")
    )
    loss = np.minimum(loss, np.float32(LARGEST))
    before = rows["visits"].astype(np.float32)
    n = before + 1
    weight = WEIGHT[np.minimum(rows["visits"], len(WEIGHT) - 1)]
    distance = loss - rows["loss"] / np.maximum(before, 1)  # from the mean so far, for Welford's variance
    variance = (spread * spread + distance * distance / n * (before > 0)) * before / n
    rows["spread"] = np.minimum(np.sqrt(variance), np.float32(LARGEST))
    rows["recent"] = recent + (loss - recent) * weight
    past = np.where(np.isnan(past), rival, past)
    rows["rival"] = np.where(np.isnan(rival), past, np.minimum(past + (rival - past) * weight, np.float32(LARGEST)))
    rows["loss"] += loss
    difference = np.minimum(np.nan_to_num(difference), np.float32(LARGEST))
    rows["difference"] = mean_difference + (difference - mean_difference) / n
    rows["last"] = loss
    rows["visits"] += 1
    rows["right"] += right
    lost = (rows["learnt"] > 0) & ~right
    rows["forgotten"] += lost & (rows["forgotten"] < np.iinfo(np.uint8).max)
    rows["learnt"] = np.where(right, np.where(rows["learnt"] > 0, rows["learnt"], rows["visits"]), 0)
    known = predicted >= 0
    empty = known & (rows["votes"] == 0)
    agrees = empty | (predicted == rows["guess"])
    votes = rows["votes"] + np.where(known, np.where(agrees, 1, -1), 0)
    rows["guess"] = np.where(empty, predicted, rows["guess"])
    rows["votes"] = np.minimum(votes, np.iinfo(np.uint8).max)
    return rows


def usable(outputs: Any, n: int) -> bool:
    """Whether the outputs are one row of class scores per sample."""
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != n or not outputs.is_floating_point():
        return False
    return 2 <= outputs.shape[1] <= MOST


def predictions(outputs: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """The class that each row of the outputs predicts, and the loss of its label against the strongest rival.

    That is ``log(1 + exp(rival - given))`` of the output of the given label and the largest of the others: above log 2
    the network prefers the rival. Unlike the cross-entropy it is small where the network is merely unsure among many
    classes. NaN without labels.

    >>> import torch
    >>> best, loss = predictions(torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 2.0]]), torch.tensor([1, 1]))
    >>> best.tolist()[0], [round(value, 2) for value in loss.tolist()]
    (0, [2.13, 0.69])
    """
    top, at = outputs.topk(2, dim=1)
    if labels is None:
        return at[:, 0], torch.full_like(top[:, 0], math.nan)
    given = outputs.gather(1, labels[:, None])[:, 0]
    rival = torch.where(at[:, 0] == labels, top[:, 1], top[:, 0])
    return at[:, 0], softplus(rival - given)
