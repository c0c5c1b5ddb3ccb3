"""Residual networks for small images (He et al. 2016, "Deep Residual Learning for Image Recognition")."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import Tensor, nn


class Residual(nn.Module):
    """Compute ``relu(body(x) + shortcut(x))``. The shortcut is a 1x1 projection only if the shape changes."""

    def __init__(self, body: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.body = body
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(*convolution(inputs, outputs, 1, stride))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, inputs, h, w)`` to ``(n, outputs, h / stride, w / stride)``, rounded up."""
        out: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return out


def basic(inputs: int, width: int, stride: int) -> Residual:
    """Two 3x3 convolutions, ``width`` channels out."""
    body = nn.Sequential(*convolution(inputs, width, 3, stride), nn.ReLU(), *convolution(width, width, 3))
    return Residual(body, inputs, width, stride)


def bottleneck(inputs: int, width: int, stride: int) -> Residual:
    """1x1, 3x3 and 1x1 convolutions, ``4 * width`` channels out. The stride is in the 3x3 one, to skip no pixel."""
    body = nn.Sequential(
        *convolution(inputs, width, 1),
        nn.ReLU(),
        *convolution(width, width, 3, stride),
        nn.ReLU(),
        *convolution(width, 4 * width, 1),
    )
    return Residual(body, inputs, 4 * width, stride)


class ResNet(nn.Sequential):
    """ResNet with a 3x3 stride-1 stem and no max-pool, for images of 8 to 64 pixels.

    ``block`` is `basic` or `bottleneck`. ``depths`` is the blocks of each stage. Every stage after the first has half
    the resolution and twice the width: ``ResNet(basic, (2, 2, 2, 2))`` is ResNet-18,
    ``ResNet(bottleneck, (3, 4, 6, 3))`` is ResNet-50.
    """

    def __init__(
        self,
        block: Callable[[int, int, int], Residual],
        depths: Sequence[int],
        width: int = 64,
        classes: int = 10,
        channels: int = 3,
    ) -> None:
        layers: list[nn.Module] = [*convolution(channels, width, 3), nn.ReLU()]
        size = width
        for stage, depth in enumerate(depths):
            for position in range(depth):
                stride = 2 if stage > 0 and position == 0 else 1
                layer = block(size, width * 2**stage, stride)
                layers.append(layer)
                size = layer.outputs
        super().__init__(
            OrderedDict(
                features=nn.Sequential(*layers),
                pool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(),
                head=nn.Linear(size, classes),
            )
        )


def convolution(
    inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """A convolution that keeps the size at stride 1, and the BatchNorm that follows it."""
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return layer, nn.BatchNorm2d(outputs)
