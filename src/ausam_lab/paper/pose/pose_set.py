"""Pose estimation as a problem of the lab: only the samples that the sampler chose are read and decoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from ausam.common.random import generator
from ausam.sampler.batch_sampler import SelectiveBatchSampler
from ausam_lab.config import Config
from ausam_lab.data.images import normalise
from ausam_lab.data.labels import refuse_labels, with_sizes, with_validation
from ausam_lab.data.loading import load_batches
from ausam_lab.data.problem import Task
from ausam_lab.paper.pose.crop import MEAN, PLAIN, STD
from ausam_lab.paper.pose.people import Crops, People
from ausam_lab.paper.pose.simcc import SIMCC, SPLIT
from ausam_lab.paper.pose.skeleton import JOINTS

AUGMENTATIONS = ("none", "standard")

Batches = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class PoseSet:
    """A pose problem: people to train and to evaluate on, as crops of ``size`` pixels."""

    task: ClassVar[Task] = SIMCC
    num_outputs: ClassVar[int] = len(JOINTS)
    channels: ClassVar[int] = 3
    long_tailed: ClassVar[bool] = False

    name: str
    train: People
    test: People
    size: int
    augment: str = "none"  # or "standard": mirrored, rotated and scaled as in HRNet
    workers: int = 0
    device: str = "cpu"
    wrong: Tensor | None = None  # poses have no wrong labels
    evaluated_on: str = "test"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of a network's output for a person: for every joint, a score per bin of x and of y."""
        return (self.num_outputs, 2, SPLIT * self.size)

    @cached_property
    def train_y(self) -> Tensor:
        """The targets of the training people, not augmented."""
        return self._targets(self.train)

    @cached_property
    def test_y(self) -> Tensor:
        """The targets of the test people."""
        return self._targets(self.test)

    def prepare(self, config: Config) -> PoseSet:
        """The data set that a run specifies; a ValueError for wrong labels or cutout, which poses do not support."""
        refuse_labels(self.name, "joints", config)
        if config.augment not in AUGMENTATIONS:
            raise ValueError(f'augment is "{config.augment}". For poses, use {" or ".join(AUGMENTATIONS)}.')
        seed = config.data_seed or 0
        part = with_sizes(with_validation(self, config.validation, seed), config.train_size, config.test_size, seed)
        return replace(part, augment=config.augment, workers=config.workers, device=config.device)

    def part(self, train: Tensor, test: Tensor) -> PoseSet:
        """The data set with only these people."""
        return replace(self, train=self.train.part(train), test=self.test.part(test))

    def training_as_test(self) -> PoseSet:
        """The data set whose test people are its training people."""
        return replace(self, test=self.train)

    def batches(self, sampler: SelectiveBatchSampler, epoch: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Crops, targets and indices of one pass of the sampler; the augmentation depends on seed, epoch and index."""
        shown = Crops(self.train, self.size, None if self.augment == "none" else (seed, epoch))
        for x, y, index in load_batches(shown, self.workers, self.device, generator(0), batch_sampler=sampler):
            yield self._normalise(x), y.to(self.device), index

    def test_batches(self, size: int = 64) -> Batches:
        """Every test person once, in order."""
        return self._in_order(self.test, size)

    def plain_batches(self, size: int = 64) -> Batches:
        """Every training person once, in order, not augmented."""
        return self._in_order(self.train, size)

    def example(self) -> Tensor:
        """The inputs of a few training samples, in the form that a network gets."""
        x, _ = self.train.shown(0, self.size, PLAIN)
        return self._normalise(torch.stack([x, x]))

    def _targets(self, people: People) -> Tensor:
        return torch.stack([people.target(i, self.size) for i in range(len(people))])

    def _in_order(self, people: People, size: int) -> Batches:
        for x, y, _ in load_batches(Crops(people, self.size), self.workers, self.device, generator(0), batch_size=size):
            yield self._normalise(x), y.to(self.device)

    def _normalise(self, x: Tensor) -> Tensor:
        return normalise(x.to(self.device, non_blocking=True), MEAN, STD)
