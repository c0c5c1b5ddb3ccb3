"""The paper's networks for images beside ResNet: WideResNet, PyramidNet and MobileNetV1."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from ausam_lab.networks.resnet import convolution


def _parts(features: nn.Module, size: int, classes: int) -> OrderedDict[str, nn.Module]:
    return OrderedDict(
        features=features, pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), head=nn.Linear(size, classes)
    )


class PreActivation(nn.Module):
    """Compute ``shortcut + conv(relu(bn(conv(a))))`` with ``a = relu(bn(x))``.

    The shortcut is ``x`` itself, or a 1x1 convolution of ``a`` if the shape changes.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.activate = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        )
        self.project: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.project = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, inputs, h, w)`` to ``(n, outputs, h / stride, w / stride)``, rounded up."""
        active = self.activate(x)
        shortcut = x if self.project is None else self.project(active)
        out: Tensor = self.body(active) + shortcut
        return out


class WideResNet(nn.Sequential):
    """WideResNet-``depth``-``widen`` without dropout (Zagoruyko & Komodakis 2016, "Wide Residual Networks").

    Three stages of ``(depth - 4) / 6`` blocks with 16, 32 and 64 times ``widen`` channels: ``depth`` is 10, 16, 22,
    28, .... ``widen`` is at least 1.
    """

    def __init__(self, depth: int = 28, widen: int = 10, classes: int = 10, channels: int = 3) -> None:
        layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, 1, 1, bias=False)]
        size = 16
        for stage in range(3):
            width = 16 * widen * 2**stage
            for position in range((depth - 4) // 6):
                layers.append(PreActivation(size, width, 2 if stage > 0 and position == 0 else 1))
                size = width
        super().__init__(_parts(nn.Sequential(*layers, nn.BatchNorm2d(size), nn.ReLU()), size, classes))


class Pyramidal(nn.Module):
    """Add ``bn conv bn relu conv bn`` to the input, which is average-pooled and zero-padded if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.extra = outputs - inputs
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs),  # no ReLU before the first convolution: the paper's section 3.3
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        # ceil_mode because the padded stride-2 convolution rounds odd sizes up.
        self.pool: nn.Module = nn.Identity() if stride == 1 else nn.AvgPool2d(stride, ceil_mode=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, inputs, h, w)`` to ``(n, outputs, h / stride, w / stride)``, rounded up."""
        out: Tensor = self.body(x) + functional.pad(self.pool(x), (0, 0, 0, 0, 0, self.extra))
        return out


class PyramidNet(nn.Sequential):
    """Additive PyramidNet of basic blocks (Han, Kim & Kim 2017, "Deep Pyramidal Residual Networks").

    Block k of N = (depth - 2) / 2 has ``floor(16 + widen * k / N)`` channels. ``depth`` is 8, 14, 20, ..., 110, ...
    (three stages of ``(depth - 2) / 6`` blocks). ``widen`` is the paper's alpha, the channels added over the whole
    network, at least 0.
    """

    def __init__(self, depth: int = 110, widen: int = 270, classes: int = 10, channels: int = 3) -> None:
        blocks = (depth - 2) // 6
        total = 3 * blocks
        sizes = [16 + widen * k // total for k in range(total + 1)]
        layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)]
        for k, (inputs, outputs) in enumerate(pairwise(sizes)):
            layers.append(Pyramidal(inputs, outputs, 2 if k in (blocks, 2 * blocks) else 1))
        super().__init__(_parts(nn.Sequential(*layers, nn.BatchNorm2d(sizes[-1]), nn.ReLU()), sizes[-1], classes))


# (channels out, stride) of MobileNetV1's thirteen separable convolutions. Table 1 of its paper prints stride 2
# for the last one too, but its own 7x7 output there and its 569 M multiply-adds are only right with stride 1.
SEPARABLE = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


class MobileNet(nn.Sequential):
    """MobileNetV1 (Howard et al. 2017, arXiv 1704.04861) with every channel count multiplied by ``width``, at most 1.

    ``stem`` is the stride of the first convolution: 2 for 224-pixel images, 1 for 32-pixel ones. ``pixels`` is the size
    to which images are resized first, e.g. Tiny-ImageNet's 64 to 224 as AUSAM's authors did. 0 leaves them unchanged.
    """

    def __init__(
        self, width: float = 1.0, stem: int = 2, classes: int = 10, channels: int = 3, *, pixels: int = 0
    ) -> None:
        size = int(32 * width)
        layers: list[nn.Module] = [*convolution(channels, size, 3, stem), nn.ReLU()]
        for channels_out, stride in SEPARABLE:
            outputs = int(channels_out * width)
            layers += [*convolution(size, size, 3, stride, groups=size), nn.ReLU()]
            layers += [*convolution(size, outputs, 1), nn.ReLU()]
            size = outputs
        resize = nn.Upsample((pixels, pixels), mode="bilinear") if pixels else nn.Identity()
        super().__init__(OrderedDict(resize=resize) | _parts(nn.Sequential(*layers), size, classes))
