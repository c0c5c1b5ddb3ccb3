"""Image data sets that are kept in memory, and the augmentation of their batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Generator, Tensor

from ausam.common.random import generator
from ausam.sampler.batch_sampler import SelectiveBatchSampler
from ausam_lab.config import Config
from ausam_lab.data.labels import arrange
from ausam_lab.data.problem import Batches, Problem


@dataclass(frozen=True)
class ImageSet(Problem):
    """A classification problem: images (n, channels, height, width), labels and their properties.

    Images may be bytes or floats. ``mean`` and ``std``, one number per channel, are in the same units.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: str = "none"  # none, standard or cutout: see augment_images()

    @property
    def channels(self) -> int:
        """Number of colour channels."""
        return self.train_x.shape[1]

    def normalise(self, x: Tensor) -> Tensor:
        """The images, with each channel centred and scaled."""
        return normalise(x, self.mean, self.std)

    def prepare(self, config: Config) -> ImageSet:
        """The data set that a run specifies. A ValueError for workers, because there is nothing left to load."""
        if config.workers:
            raise ValueError(f"workers is {config.workers}, but {self.name} is kept in memory. Use --workers 0.")
        data = arrange(self, config)
        moved = {k: getattr(data, k).to(config.device) for k in ("train_x", "train_y", "test_x", "test_y")}
        return data.changed(augment=config.augment, **moved)

    def batches(self, sampler: SelectiveBatchSampler, epoch: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Images, labels and indices of one pass of the sampler. The augmentation depends on the arguments only."""
        for b, chosen in enumerate(sampler):
            index = torch.tensor(chosen)
            rng = generator(seed, epoch, b, 0xA06)
            x = augment_images(self.train_x[index], self.augment, self.mean, self.std, rng)
            yield x, self.train_y[index], index

    def in_order(self, which: str, size: int = 125) -> Batches:
        """Every image of "train" or "test" once, in order, not augmented."""
        x, y = (self.train_x, self.train_y) if which == "train" else (self.test_x, self.test_y)
        for i in range(0, len(y), size):
            yield self.normalise(x[i : i + size]), y[i : i + size]

    def example(self) -> Tensor:
        """The inputs of a few training samples, in the form that a network gets."""
        return self.normalise(self.train_x[:2])


# -- augmentation of whole batches, on their device; every random draw uses the given generator ----------------------


def augment_images(x: Tensor, kind: str, mean: tuple[float, ...], std: tuple[float, ...], rng: Generator) -> Tensor:
    """Augment and normalise a batch of raw images (n, channels, height, width).

    "standard" is a random crop after padding by an eighth of the side, and a flip with probability 0.5. "cutout" is
    standard plus, with probability 0.5, a hole of half the side at a random position (the paper's official code).
    "none" leaves the images unchanged. Padding is black, so it comes before normalisation. A hole has the mean colour,
    so it comes after. The draws are made on the CPU, so every device sees the same images.
    """
    n, _, height, width = x.shape
    if kind != "none":
        margin = height // 8, width // 8
        down, right = (torch.randint(0, 2 * m + 1, (n,), generator=rng).to(x.device) for m in margin)
        x = crop(x, down, right, margin)
        x = flip(x, torch.randint(0, 2, (n,), generator=rng).bool().to(x.device))
    x = normalise(x, mean, std)
    if kind == "cutout":
        row, column = (torch.randint(0, side, (n,), generator=rng).to(x.device) for side in (height, width))
        which = torch.randint(0, 2, (n,), generator=rng).bool().to(x.device)
        x = torch.where(which.view(-1, 1, 1, 1), cut_out(x, row, column, min(height, width) // 2), x)
    return x


def crop(x: Tensor, down: Tensor, right: Tensor, margin: tuple[int, int]) -> Tensor:
    """Pad each image by ``margin`` zeros on all sides, then crop it to its original size at its own offset."""
    height, width = x.shape[2:]
    padded = F.pad(x, (margin[1], margin[1], margin[0], margin[0]))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view of every possible crop
    return windows[torch.arange(len(x), device=x.device), :, down, right]


def flip(x: Tensor, which: Tensor) -> Tensor:
    """Mirror the marked images left to right."""
    return torch.where(which.view(-1, 1, 1, 1), x.flip(3), x)


def cut_out(x: Tensor, row: Tensor, column: Tensor, size: int) -> Tensor:
    """Set a square around its own centre to zero in each image, clipped at the border (DeVries 2017)."""

    def covered(centre: Tensor, length: int) -> Tensor:
        distance = torch.arange(length, device=x.device) - (centre - size // 2)[:, None]
        return (distance >= 0) & (distance < size)

    hole = covered(row, x.shape[2])[:, None, :, None] & covered(column, x.shape[3])[:, None, None, :]
    return x.masked_fill(hole, 0.0)


def normalise(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """The images as floats, with each channel centred and scaled. Mean and std are in pixel units."""
    centre = torch.tensor(mean, device=x.device).view(-1, 1, 1)
    scale = torch.tensor(std, device=x.device).view(-1, 1, 1)
    return (x.float() - centre) / scale
