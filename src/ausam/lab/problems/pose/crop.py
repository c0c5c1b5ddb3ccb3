"""From a person in a picture to a square crop and back: one affine map a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ausam.random import generator

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[np.float64]

UNIT = 200.0  # pixels of the picture that a person's scale counts in
TURN, GROWTH = 30.0, 0.25  # HRNet's for MPII: degrees and part of the scale that are one standard deviation
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of ImageNet's pixels


@dataclass(frozen=True)
class Change:
    """How a person is shown: turned by degrees, the cut square so many times larger, mirrored."""

    turn: float = 0.0
    growth: float = 1.0
    mirror: bool = False


PLAIN = Change()


def random_change(seed: int, epoch: int, index: int) -> Change:
    """The augmentation of a person in an epoch, as in HRNet: a function of the arguments alone.

    Scale by clip(1 + 0.25 N, 0.75, 1.25); turned with probability 0.6, by clip(30 N, -60, 60) degrees; mirrored with
    probability 0.5.
    """
    rng = generator(seed, epoch, index, 0x905E)
    grow, turn = torch.randn(2, generator=rng).tolist()
    turned, mirrored = torch.rand(2, generator=rng).tolist()
    growth = min(max(1 + GROWTH * grow, 1 - GROWTH), 1 + GROWTH)
    angle = min(max(TURN * turn, -2 * TURN), 2 * TURN) if turned <= 0.6 else 0.0
    return Change(angle, growth, mirrored <= 0.5)


def to_crop(centre: Array, scale: float, size: int, change: Change = PLAIN) -> Array:
    """The 2x3 matrix from pixels of the picture to pixels of the crop; pixel centres have whole numbers.

    The centre goes to (size / 2, size / 2), and a square of 200 * scale pixels fills the crop. A mirror acts first.
    """
    angle = np.deg2rad(change.turn)
    ratio = size / (UNIT * scale * change.growth)
    linear = ratio * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    if change.mirror:
        linear[:, 0] *= -1
    return np.column_stack([linear, size / 2 - linear @ centre])


def inverse(matrix: Array) -> Array:
    """The way back."""
    linear = np.linalg.inv(matrix[:, :2])
    return np.column_stack([linear, -linear @ matrix[:, 2]])


def mapped(points: Array, matrix: Array) -> Array:
    """Points (..., 2) under a 2x3 matrix."""
    return points @ matrix[:, :2].T + matrix[:, 2]


def cut(picture: Image, matrix: Array, size: int) -> Tensor:
    """The crop as bytes (3, size, size), bilinear; black where the picture ends."""
    from PIL.Image import Resampling, Transform

    (a, b, c), (d, e, f) = inverse(matrix)
    # Pillow counts from the corner of a pixel, where we count from its centre.
    back = (a, b, c + 0.5 - 0.5 * (a + b), d, e, f + 0.5 - 0.5 * (d + e))
    found = picture.transform((size, size), Transform.AFFINE, back, Resampling.BILINEAR)
    return torch.from_numpy(np.array(found)).permute(2, 0, 1).contiguous()
