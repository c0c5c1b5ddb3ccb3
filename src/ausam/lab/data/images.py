"""Images that live in memory, and wrong labels for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ausam.random import generator


@dataclass(frozen=True)
class ImageSet:
    """A classification problem: images (n, channels, height, width), labels, and what is known of them."""

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    wrong: Tensor | None = None  # which training labels were made wrong

    @property
    def channels(self) -> int:
        """Colour planes of an image."""
        return self.train_x.shape[1]

    def normalised(self, x: Tensor) -> Tensor:
        """The images with each channel centred and scaled."""
        mean = torch.tensor(self.mean, device=x.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=x.device).view(-1, 1, 1)
        return (x.float() - mean) / std

    def to(self, device: str) -> ImageSet:
        """The same on another device."""
        moved = {k: getattr(self, k).to(device) for k in ("train_x", "train_y", "test_x", "test_y")}
        return replace(self, **moved)


def with_label_noise(data: ImageSet, part: float) -> ImageSet:
    """Give ``round(part * n)`` training samples, always the same ones, a wrong label drawn evenly from the others."""
    if not 0 <= part < 1:
        raise ValueError(f"label noise is {part}, but it is the part of the labels that is made wrong: 0 <= part < 1.")
    n = len(data.train_y)
    rng = generator(0, n, data.classes)
    chosen = torch.randperm(n, generator=rng)[: round(part * n)]
    shift = torch.randint(1, data.classes, (len(chosen),), generator=rng)
    y = data.train_y.clone()
    y[chosen] = (y[chosen] + shift) % data.classes
    wrong = torch.zeros(n, dtype=torch.bool)
    wrong[chosen] = True
    return replace(data, train_y=y, wrong=wrong)
