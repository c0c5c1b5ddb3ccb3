"""Image data sets that are kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ausam.common.random import generator
from ausam.sampler.batch_sampler import SelectiveBatchSampler
from ausam_lab.config import Config
from ausam_lab.data.augment import augment_images, normalise
from ausam_lab.data.classification import Labelled
from ausam_lab.data.labels import arrange


@dataclass(frozen=True)
class ImageSet(Labelled):
    """A classification problem: images (n, channels, height, width), labels and their properties.

    Images may be bytes or floats; ``mean`` and ``std``, one number per channel, are in the same units.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    wrong: Tensor | None = None  # which training labels were made wrong
    augment: str = "none"  # none, standard or cutout: see augment_images()
    long_tailed: bool = False
    evaluated_on: str = "test"
    kept: Tensor | None = None  # the indices of the training samples that are left; None: all
    names: tuple[str, ...] = ()  # of the classes, if they have any

    @property
    def channels(self) -> int:
        """Number of colour channels."""
        return self.train_x.shape[1]

    def normalise(self, x: Tensor) -> Tensor:
        """The images, with each channel centred and scaled."""
        return normalise(x, self.mean, self.std)

    def prepare(self, config: Config) -> ImageSet:
        """The data set that a run specifies; a ValueError for workers, because there is nothing left to load."""
        if config.workers:
            raise ValueError(f"workers is {config.workers}, but {self.name} is kept in memory. Use --workers 0.")
        return replace(arrange(self, config), augment=config.augment).to(config.device)

    def to(self, device: str) -> ImageSet:
        """The same data on another device."""
        moved = {k: getattr(self, k).to(device) for k in ("train_x", "train_y", "test_x", "test_y")}
        return replace(self, **moved)

    def part(self, train: Tensor, test: Tensor) -> ImageSet:
        """The data set with only these samples."""
        return replace(
            self,
            train_x=self.train_x[train],
            train_y=self.train_y[train],
            kept=self.origin[train],
            test_x=self.test_x[test],
            test_y=self.test_y[test],
        )

    def training_as_test(self) -> ImageSet:
        """The data set whose test samples are its training samples."""
        return replace(self, test_x=self.train_x, test_y=self.train_y)

    def batches(self, sampler: SelectiveBatchSampler, epoch: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Images, labels and indices of one pass of the sampler; the augmentation depends on the arguments only."""
        for b, chosen in enumerate(sampler):
            index = torch.tensor(chosen)
            rng = generator(seed, epoch, b, 0xA06)
            x = augment_images(self.train_x[index], self.augment, self.mean, self.std, rng)
            yield x, self.train_y[index], index

    def test_batches(self, size: int = 125) -> Iterator[tuple[Tensor, Tensor]]:
        """Every test image once, in order."""
        for i in range(0, len(self.test_y), size):
            yield self.normalise(self.test_x[i : i + size]), self.test_y[i : i + size]

    def plain_batches(self, size: int = 125) -> Iterator[tuple[Tensor, Tensor]]:
        """Every training image once, in order, not augmented."""
        for i in range(0, len(self.train_y), size):
            yield self.normalise(self.train_x[i : i + size]), self.train_y[i : i + size]

    def example(self) -> Tensor:
        """The inputs of a few training samples, in the form that a network gets."""
        return self.normalise(self.train_x[:2])
