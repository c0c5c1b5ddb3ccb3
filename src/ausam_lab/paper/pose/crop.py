"""The affine map from a person in a picture to a square crop, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ausam.common.random import generator

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[np.float64]

UNIT = 200.0  # a person's scale is in units of this many pixels
TURN, GROWTH = 30.0, 0.25  # HRNet's for MPII: standard deviations of the rotation in degrees and of the scale
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of the pixels of ImageNet


@dataclass(frozen=True)
class Change:
    """How a person is shown: rotated by some degrees, with the square scaled by a factor, and mirrored."""

    turn: float = 0.0
    growth: float = 1.0
    mirror: bool = False


PLAIN = Change()


def random_change(seed: int, epoch: int, index: int) -> Change:
    """The augmentation of a person in an epoch, as in HRNet: depends on the arguments only.

    Scale by clip(1 + 0.25 N, 0.75, 1.25); rotate with probability 0.6, by clip(30 N, -60, 60) degrees; mirror with
    probability 0.5.
    """
    rng = generator(seed, epoch, index, 0x905E)
    grow, turn = torch.randn(2, generator=rng).tolist()
    turned, mirrored = torch.rand(2, generator=rng).tolist()
    growth = min(max(1 + GROWTH * grow, 1 - GROWTH), 1 + GROWTH)
    angle = min(max(TURN * turn, -2 * TURN), 2 * TURN) if turned <= 0.6 else 0.0
    return Change(angle, growth, mirrored <= 0.5)


def to_crop(centre: Array, scale: float, size: int, change: Change = PLAIN) -> Array:
    """The 2x3 matrix from pixels of the picture to pixels of the crop; pixel centres are at whole numbers.

    The centre maps to (size / 2, size / 2), and a square of 200 * scale pixels fills the crop. Mirroring comes first.
    """
    angle = np.deg2rad(change.turn)
    ratio = size / (UNIT * scale * change.growth)
    linear = ratio * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    if change.mirror:
        linear[:, 0] *= -1
    return np.column_stack([linear, size / 2 - linear @ centre])


def inverse(matrix: Array) -> Array:
    """The inverse map."""
    linear = np.linalg.inv(matrix[:, :2])
    return np.column_stack([linear, -linear @ matrix[:, 2]])


def mapped(points: Array, matrix: Array) -> Array:
    """Points (..., 2) mapped by a 2x3 matrix."""
    return points @ matrix[:, :2].T + matrix[:, 2]


def cut(picture: Image, matrix: Array, size: int) -> Tensor:
    """The crop as bytes (3, size, size), interpolated bilinearly; black outside the picture."""
    from PIL.Image import Resampling, Transform

    (a, b, c), (d, e, f) = inverse(matrix)
    # Pillow counts from the corner of a pixel, we count from its centre.
    back = (a, b, c + 0.5 - 0.5 * (a + b), d, e, f + 0.5 - 0.5 * (d + e))
    cropped = picture.transform((size, size), Transform.AFFINE, back, Resampling.BILINEAR)
    return torch.from_numpy(np.array(cropped)).permute(2, 0, 1).contiguous()
