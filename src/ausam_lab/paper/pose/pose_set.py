"""Pose estimation as a problem of the lab: only the samples that the sampler chose are read and decoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ausam.common.random import generator
from ausam.sampler.batch_sampler import SelectiveBatchSampler
from ausam_lab.config import Config
from ausam_lab.data.images import normalise
from ausam_lab.data.labels import arrange, refuse_labels
from ausam_lab.data.loading import load_batches
from ausam_lab.data.problem import Batches, Problem
from ausam_lab.paper.pose.crop import MEAN, PLAIN, STD
from ausam_lab.paper.pose.people import Crops, People
from ausam_lab.paper.pose.simcc import SIMCC, SPLIT
from ausam_lab.paper.pose.skeleton import JOINTS


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
    kept: Tensor | None = None
    evaluated_on: str = "test"
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
        """The data set that a run specifies; a ValueError for wrong labels or cutout, which poses do not support."""
        refuse_labels(self.name, "joints", config)
        if config.augment == "cutout":
            raise ValueError('augment is "cutout". For poses, use none or standard.')
        return arrange(self, config).changed(augment=config.augment, workers=config.workers, device=config.device)

    def batches(self, sampler: SelectiveBatchSampler, epoch: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Crops, targets and indices of one pass of the sampler; the augmentation depends on seed, epoch and index."""
        shown = Crops(self.train, self.size, None if self.augment == "none" else (seed, epoch))
        return self._loaded(shown, batch_sampler=sampler)

    def in_order(self, which: str, size: int) -> Batches:
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
