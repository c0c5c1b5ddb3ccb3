"""Labels and class scores, and the margin loss of a label against the strongest other class, which ranks labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus


def class_labels(owner: str, labels: Any, n: int | None = None) -> NDArray[np.int64]:
    """The labels as one whole number >= 0 per sample, of n if given. An error in the name of the owner otherwise."""
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu" or n not in (None, len(array)):
        samples = "sample" if n is None else f"sample, {n} in all"
        raise ValueError(
            f"{owner}: labels has shape {array.shape} and type {array.dtype}. Give one whole number per {samples}: its "
            "class."
        )
    if (array < 0).any():
        raise ValueError(f"{owner}: labels contain {array.min()}. Number the classes from 0.")
    return array.astype(np.int64)


def usable(outputs: Any, n: int) -> bool:
    """Whether the outputs are one row of class scores per sample."""
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != n or not outputs.is_floating_point():
        return False
    return outputs.shape[1] >= 2


def require_columns(largest: int, columns: int) -> None:
    """Raise an error if there is no output for the largest label: it would be compared with another class."""
    if largest >= columns:
        raise ValueError(
            f"labels go up to {largest}, but the outputs have {columns} columns, for the classes 0 to {columns - 1}. "
            "Number the classes from 0, and pass one score per class, or the losses alone."
        )


def against_rival(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The margin loss of each row, and its strongest other class.

    It is ``log(1 + exp(rival - label))`` of the output of the label and the largest of the others: above log 2 the
    network prefers the rival. Unlike the cross-entropy it is small where the network is merely unsure among many
    classes.

    >>> margin, rival = against_rival(torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 2.0]]), torch.tensor([1, 1]))
    >>> [round(value, 2) for value in margin.tolist()], rival.tolist()
    ([2.13, 0.69], [0, 2])
    """
    label = outputs.gather(1, labels[:, None])
    top, at = outputs.scatter(1, labels[:, None], -torch.inf).max(1)
    return softplus(top - label[:, 0]), at
