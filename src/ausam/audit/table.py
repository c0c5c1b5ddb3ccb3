"""The table behind an audit: 24 bytes per sample, updated row by row from the feedback of each step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

# Sums are halved together with the visits before they overflow, which leaves every mean as it was.
ROW = np.dtype(
    [
        ("loss", np.float32),  # sum over visits
        ("difference", np.float32),  # sum of |perturbed - loss|
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
DECAY = 0.8  # weight of the past in the moving average
MOST = np.iinfo(np.uint16).max
LARGEST = float(np.finfo(np.float16).max)
SURE = math.log(2.0)  # a cross-entropy below it means a probability above 1/2 for the label


def empty_table(n: int) -> Array:
    """A table of ``n`` samples that were never visited."""
    table = np.zeros(n, ROW)
    table["last"] = np.nan
    return table


def visit(rows: Array, loss: Array, difference: Array, right: Array, predicted: Array | None) -> Array:
    """The rows after one more visit each.

    Arguments:
        rows: the rows before.
        loss: the loss of each sample.
        difference: the absolute change of its loss under the perturbation; NaN if there was none.
        right: whether the network agreed with the label.
        predicted: the class that the network predicted, or None.
    """
    rows = rows.copy()
    full = rows["visits"] == MOST
    for name in ("loss", "difference", "visits", "right", "learnt"):
        rows[name][full] = rows[name][full] / 2
    loss = np.minimum(loss, LARGEST)
    before = rows["visits"].astype(np.float64)
    n = before + 1
    distance = loss - rows["loss"] / np.maximum(before, 1)  # from the mean so far, for Welford's variance
    variance = rows["spread"].astype(np.float64) ** 2 * before / n + (before > 0) * distance**2 * before / n**2
    rows["spread"] = np.minimum(np.sqrt(variance), LARGEST)
    rows["recent"] += (loss - rows["recent"]) * (1 - DECAY) / (1 - DECAY**n)
    rows["loss"] += loss
    rows["difference"] += np.nan_to_num(difference)
    rows["last"] = loss
    rows["visits"] += 1
    rows["right"] += right
    lost = (rows["learnt"] > 0) & ~right
    rows["forgotten"] += lost & (rows["forgotten"] < np.iinfo(np.uint8).max)
    rows["learnt"] = np.where(right, np.where(rows["learnt"] > 0, rows["learnt"], rows["visits"]), 0)
    if predicted is not None:
        same = predicted == rows["guess"]
        empty = rows["votes"] == 0
        rows["guess"] = np.where(empty, predicted, rows["guess"])
        more = (same | empty) & (rows["votes"] < np.iinfo(np.uint8).max)
        rows["votes"] = np.where(more, rows["votes"] + 1, np.where(same | empty, rows["votes"], rows["votes"] - 1))
    return rows


def predictions(outputs: Any, n: int) -> Array | None:
    """The class that each row of the outputs predicts: their largest entry; None unless they are one row per sample."""
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != n or not outputs.is_floating_point():
        return None
    if not 2 <= outputs.shape[1] <= MOST:
        return None
    classes: Array = outputs.argmax(dim=1).to("cpu", torch.int64).numpy()
    return classes
