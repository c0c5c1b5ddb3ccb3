"""Stick figures of 64x64 pixels, drawn from a seed: a pose problem for a laptop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ausam.paper.pose.crop import UNIT
from ausam.paper.pose.people import People
from ausam.paper.pose.pose_set import PoseSet
from ausam.paper.pose.stick_figure import SIDE, head_size, painted, posed

if TYPE_CHECKING:
    from PIL.Image import Image

TRAIN, TEST = 1_000, 250


def stick_figures(data_dir: str = "") -> PoseSet:  # noqa: ARG001  (nothing lies there)
    """1,000 figures for training and 250 for testing, always the same ones."""
    return PoseSet("stick-figures", many(0, TRAIN), many(1, TEST), SIDE)


def many(seed: int, n: int) -> People:
    """Draw n figures, each from the seed and its number; a joint outside the picture is not visible."""
    rngs = [np.random.default_rng([seed, i, 0xF16]) for i in range(n)]
    joints = np.stack([posed(rng) for rng in rngs])
    pictures = np.stack([painted(points, rng) for points, rng in zip(joints, rngs, strict=True)])
    visible = np.asarray(((joints >= 0) & (joints <= SIDE - 1)).all(2), np.float64)
    centre, scale = np.full((n, 2), SIDE / 2), np.full(n, SIDE / UNIT)
    return People(InMemory(pictures), np.arange(n), centre, scale, joints, visible, head_size(joints))


class InMemory:
    """Pictures in memory, by number."""

    def __init__(self, pictures: NDArray[np.uint8]) -> None:
        self._pictures = pictures

    def __call__(self, i: int) -> Image:
        """The picture."""
        from PIL import Image

        return Image.fromarray(self._pictures[i])
