"""Pose estimation: people in pictures, the crop of one of them for a network, and the problem that they make.

A crop is the image of a square around a person under an affine map. Only the samples that the sampler chose are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ausam.common.random import generator
from ausam.sampler.batch_sampler import SelectiveBatchSampler
from ausam_lab.config import Config
from ausam_lab.data.images import normalise
from ausam_lab.data.labels import arrange
from ausam_lab.data.loading import load_batches
from ausam_lab.data.problem import Batches, Problem
from ausam_lab.paper.pose.simcc import HEAD, JOINTS, MIRRORED, NECK, SIMCC, SPLIT

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[np.float64]

UNIT = 200.0  # a person's scale is in units of this many pixels
TURN, GROWTH = 30.0, 0.25  # HRNet's for MPII: standard deviations of the rotation in degrees and of the scale
SC_BIAS = 0.6  # MPII's: the head's size divided by the diagonal of its box
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

    Scale by clip(1 + 0.25 N, 0.75, 1.25). Rotate with probability 0.6, by clip(30 N, -60, 60) degrees. Mirror with
    probability 0.5.
    """
    rng = generator(seed, epoch, index, 0x905E)
    grow, turn = torch.randn(2, generator=rng).tolist()
    turned, mirrored = torch.rand(2, generator=rng).tolist()
    growth = min(max(1 + GROWTH * grow, 1 - GROWTH), 1 + GROWTH)
    angle = min(max(TURN * turn, -2 * TURN), 2 * TURN) if turned <= 0.6 else 0.0
    return Change(angle, growth, mirrored <= 0.5)


def to_crop(centre: Array, scale: float, size: int, change: Change = PLAIN) -> Array:
    """The 2x3 matrix from pixels of the picture to pixels of the crop. Pixel centres are at whole numbers.

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
    """The crop as bytes (3, size, size), interpolated bilinearly. Black outside the picture."""
    from PIL.Image import Resampling, Transform

    (a, b, c), (d, e, f) = inverse(matrix)
    # Pillow counts from the corner of a pixel, we count from its centre.
    back = (a, b, c + 0.5 - 0.5 * (a + b), d, e, f + 0.5 - 0.5 * (d + e))
    cropped = picture.transform((size, size), Transform.AFFINE, back, Resampling.BILINEAR)
    return torch.from_numpy(np.array(cropped)).permute(2, 0, 1).contiguous()


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
        picture = self.open(int(self.number[i]))
        return cut(picture, self.matrix(i, size, change), size), self.target(i, size, change)

    def target(self, i: int, size: int, change: Change = PLAIN) -> Tensor:
        """(16, 4): x and y in pixels of the crop, visible or not, and the size of the head in pixels of the crop."""
        matrix = self.matrix(i, size, change)
        order = list(MIRRORED) if change.mirror else slice(None)
        head = self.head[i] * np.hypot(*matrix[:, 0])  # the map scales all directions alike
        columns = (mapped(self.joints[i], matrix)[order], self.visible[i][order], np.full(len(MIRRORED), head))
        return torch.from_numpy(np.column_stack(columns)).float()

    def matrix(self, i: int, size: int, change: Change = PLAIN) -> Array:
        """The matrix from pixels of the picture to pixels of the crop."""
        return to_crop(self.centre[i], float(self.scale[i]), size, change)


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


@dataclass(frozen=True)
class PoseSet(Problem):
    """A pose problem: people to train and to evaluate on, as crops of ``size`` pixels."""

    name: str
    train: People
    test: People
    size: int
    augment: str = "none"  # or "standard": mirrored, rotated and scaled as in HRNet
    workers: int = 0
    device: str = "cpu"
    classes = len(JOINTS)
    channels = 3
    task = SIMCC

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of a network's output for a person: for every joint, a score per bin of x and of y."""
        return (self.classes, 2, SPLIT * self.size)

    @cached_property
    def train_y(self) -> Tensor:  # type: ignore[override]
        """The targets of the training people, not augmented."""
        return self._targets(self.train)

    @cached_property
    def test_y(self) -> Tensor:  # type: ignore[override]
        """The targets of the test people."""
        return self._targets(self.test)

    def prepare(self, config: Config) -> PoseSet:
        """The data set that a run specifies. A ValueError for wrong labels or cutout, which poses do not support."""
        for setting in ("label_noise", "imbalance", "labels"):
            if (value := getattr(config, setting)) not in (0, 1, ""):
                raise ValueError(f"{setting} is {value}, but {self.name} has joints, not classes. Leave it out.")
        if config.augment == "cutout":
            raise ValueError('augment is "cutout". For poses, use none or standard.')
        return arrange(self, config).changed(augment=config.augment, workers=config.workers, device=config.device)

    def batches(self, sampler: SelectiveBatchSampler, epoch: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Crops, targets and indices of one pass of the sampler. The augmentation depends on seed, epoch and index."""
        shown = Crops(self.train, self.size, None if self.augment == "none" else (seed, epoch))
        return self._loaded(shown, batch_sampler=sampler)

    def in_order(self, which: str, size: int = 125) -> Batches:
        """Every person of "train" or "test" once, in order, not augmented."""
        people = self.train if which == "train" else self.test
        for x, y, _ in self._loaded(Crops(people, self.size), batch_size=min(size, 64)):
            yield x, y

    def example(self) -> Tensor:
        """The inputs of a few training samples, in the form that a network gets."""
        x, _ = self.train.shown(0, self.size, PLAIN)
        return normalise(torch.stack([x, x]).to(self.device), MEAN, STD)

    def _targets(self, people: People) -> Tensor:
        return torch.stack([people.target(i, self.size) for i in range(len(people))])

    def _loaded(self, crops: Crops, **how: Any) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for x, y, index in load_batches(crops, self.workers, self.device, generator(0), **how):
            yield normalise(x.to(self.device, non_blocking=True), MEAN, STD), y.to(self.device), index
