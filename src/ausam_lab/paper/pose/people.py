"""People in pictures, and the crop of one of them for a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ausam_lab.paper.pose.crop import PLAIN, Array, Change, cut, mapped, random_change, to_crop
from ausam_lab.paper.pose.skeleton import HEAD, MIRRORED, NECK

if TYPE_CHECKING:
    from PIL.Image import Image

SC_BIAS = 0.6  # MPII's: the head's size divided by the diagonal of its box


@dataclass(frozen=True)
class People:
    """n people: their positions, their joints in pixels of the picture, and how to open picture number i."""

    open: Callable[[int], Image]
    number: NDArray[np.int64]  # (n,): number of the picture
    centre: Array  # (n, 2)
    scale: Array  # (n,): the side of the square around a person, in units of 200 pixels
    joints: Array  # (n, 16, 2)
    visible: Array  # (n, 16): 1 if the joint is annotated
    head: Array  # (n,): size of the head in pixels, 0 if unknown

    def __len__(self) -> int:
        return len(self.number)

    def part(self, which: Tensor) -> People:
        """The people with these numbers."""
        rows = which.numpy()
        own = {k: getattr(self, k)[rows] for k in ("number", "centre", "scale", "joints", "visible", "head")}
        return replace(self, **own)

    def shown(self, i: int, size: int, change: Change) -> tuple[Tensor, Tensor]:
        """The crop of a person, bytes (3, size, size), and its target."""
        matrix = self.matrix(i, size, change)
        return cut(self.open(int(self.number[i])), matrix, size), self._target(i, matrix, change)

    def target(self, i: int, size: int, change: Change = PLAIN) -> Tensor:
        """(16, 4): x and y in pixels of the crop, visible or not, and the size of the head in pixels of the crop."""
        return self._target(i, self.matrix(i, size, change), change)

    def matrix(self, i: int, size: int, change: Change = PLAIN) -> Array:
        """The matrix from pixels of the picture to pixels of the crop."""
        return to_crop(self.centre[i], float(self.scale[i]), size, change)

    def _target(self, i: int, matrix: Array, change: Change) -> Tensor:
        order = list(MIRRORED) if change.mirror else slice(None)
        head = self.head[i] * np.hypot(*matrix[:, 0])  # the map scales all directions alike
        columns = (mapped(self.joints[i], matrix)[order], self.visible[i][order], np.full(len(MIRRORED), head))
        return torch.from_numpy(np.column_stack(columns)).float()


@dataclass(frozen=True)
class Crops:
    """The people as a torch dataset of (crop, target, index): plain, or augmented for an epoch."""

    people: People
    size: int
    epoch: tuple[int, int] | None = None  # (seed, epoch)

    def __len__(self) -> int:
        return len(self.people)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, int]:
        change = PLAIN if self.epoch is None else random_change(*self.epoch, i)
        return *self.people.shown(i, self.size, change), i


def estimated_head(joints: Array, visible: Array) -> Array:
    """0.6 times the distance from upper neck to head top, or 0 if one of the two is not annotated.

    This treats the two points as opposite corners of the head's box. If they lie on the box, the true size is at least
    this, so PCKh comes out the same or lower.
    """
    length = np.linalg.norm(joints[:, HEAD] - joints[:, NECK], axis=1)
    return np.where((visible[:, HEAD] > 0) & (visible[:, NECK] > 0), SC_BIAS * length, 0.0)
