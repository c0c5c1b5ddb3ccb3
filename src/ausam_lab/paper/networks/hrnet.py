"""High-resolution networks for poses (Sun et al. 2019) with the head of SimCC (Li et al. 2022).

Parameters have the published names, so that the official ImageNet weights fit.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ausam_lab.networks.resnet import convolution
from ausam_lab.paper.pose.simcc import SPLIT


class HRNet(nn.Module):
    """HRNet for square images, with outputs ``(n, joints, 2, bins)``: for every joint, a score per bin of x and of y.

    A branch at a quarter of the resolution is kept throughout. Every stage adds a branch of half the resolution and
    twice the channels, and its modules exchange information between all branches. ``modules`` is the number of modules
    in each stage after the first. The last module keeps only the high resolution. ``blocks`` is the number of residual
    blocks per branch, ``stem`` the number of channels before the stages. ``HRNet(32, (1, 4, 3))`` is HRNet-W32.
    """

    def __init__(
        self,
        width: int,
        modules: Sequence[int],
        blocks: int = 4,
        stem: int = 64,
        size: int = 256,
        joints: int = 16,
        channels: int = 3,
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(channels, stem, 3, 2)
        self.conv2, self.bn2 = convolution(stem, stem, 3, 2)
        self.relu = nn.ReLU()
        first = [Bottleneck(stem if i == 0 else 4 * stem, stem) for i in range(blocks)]
        self.layer1 = nn.Sequential(*first)
        self.stages = len(modules)
        before = [4 * stem]
        for i, count in enumerate(modules):
            now = [width * 2**k for k in range(i + 2)]
            last = i == len(modules) - 1
            self.add_module(f"transition{i + 1}", _transition(before, now))
            parts = [Module(now, blocks, 1 if last and m == count - 1 else len(now)) for m in range(count)]
            self.add_module(f"stage{i + 2}", nn.Sequential(*parts))
            before = now
        self.final_layer = nn.Conv2d(width, joints, 1)
        self.mlp_head_x = nn.Linear((size // 4) ** 2, SPLIT * size)
        self.mlp_head_y = nn.Linear((size // 4) ** 2, SPLIT * size)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.001)  # as in the official code
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, channels, size, size)`` to ``(n, joints, 2, bins)``."""
        maps = self.final_layer(self.features(x)).flatten(2)
        return torch.stack([self.mlp_head_x(maps), self.mlp_head_y(maps)], 2)

    def features(self, x: Tensor) -> Tensor:
        """The high-resolution map, ``(n, width, size / 4, size / 4)``."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        xs: list[Tensor] = [self.layer1(x)]
        for i in range(self.stages):
            into = self.get_submodule(f"transition{i + 1}").children()
            # a new branch starts from the lowest resolution
            xs = [change(xs[min(k, len(xs) - 1)]) for k, change in enumerate(into)]
            xs = self.get_submodule(f"stage{i + 2}")(xs)
        return xs[0]


class Module(nn.Module):
    """Residual blocks in every branch. Then each of the first ``outputs`` branches becomes the resampled sum of all."""

    def __init__(self, sizes: Sequence[int], blocks: int, outputs: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(*(Basic(c) for _ in range(blocks))) for c in sizes)
        self.fuse_layers = nn.ModuleList(
            nn.ModuleList(_resampled(sizes, j, i) for j in range(len(sizes))) for i in range(outputs)
        )
        self.relu = nn.ReLU()

    def forward(self, xs: list[Tensor]) -> list[Tensor]:
        """Map all branches to the first ``outputs`` branches."""
        xs = [branch(x) for branch, x in zip(self.branches, xs, strict=True)]
        return [self.relu(_sum(row, xs)) for row in self.fuse_layers]


class Basic(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(size, size, 3)
        self.conv2, self.bn2 = convolution(size, size, 3)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        y: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out: Tensor = self.relu(y + x)
        return out


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, ``4 * width`` channels out."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(inputs, width, 1)
        self.conv2, self.bn2 = convolution(width, width, 3)
        self.conv3, self.bn3 = convolution(width, 4 * width, 1)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if inputs != 4 * width:
            self.downsample = nn.Sequential(*convolution(inputs, 4 * width, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, inputs, h, w)`` to ``(n, 4 * width, h, w)``."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        out: Tensor = self.relu(self.bn3(self.conv3(y)) + self.downsample(x))
        return out


def _sum(changes: nn.Module, xs: list[Tensor]) -> Tensor:
    """Apply one module to each map, and add the results."""
    changed: list[Tensor] = [change(x) for change, x in zip(changes.children(), xs, strict=True)]
    return functools.reduce(torch.add, changed)


def _transition(before: Sequence[int], now: Sequence[int]) -> nn.ModuleList:
    """A branch that keeps its channels is unchanged. A new one is a strided convolution of the last."""

    def change(i: int, outputs: int) -> nn.Module:
        if i >= len(before):
            return nn.Sequential(nn.Sequential(*convolution(before[-1], outputs, 3, 2), nn.ReLU()))
        if before[i] != outputs:
            return nn.Sequential(*convolution(before[i], outputs, 3), nn.ReLU())
        return nn.Identity()

    return nn.ModuleList(change(i, c) for i, c in enumerate(now))


def _resampled(sizes: Sequence[int], source: int, target: int) -> nn.Module:
    """Resample branch ``source`` for branch ``target``: enlarge after a 1x1 convolution, or reduce by strided ones."""
    if source == target:
        return nn.Identity()
    if source > target:
        larger = nn.Upsample(scale_factor=2 ** (source - target), mode="nearest")
        return nn.Sequential(*convolution(sizes[source], sizes[target], 1), larger)
    steps = [
        nn.Sequential(*convolution(sizes[source], sizes[source], 3, 2), nn.ReLU()) for _ in range(target - source - 1)
    ]
    return nn.Sequential(*steps, nn.Sequential(*convolution(sizes[source], sizes[target], 3, 2)))
