"""MobileNetV1 (Howard et al. 2017, "MobileNets: Efficient CNNs for Mobile Vision Applications", arXiv 1704.04861)."""

from collections import OrderedDict

from torch import nn

# (channels out, stride) of the thirteen depthwise separable convolutions. The paper's table 1 prints stride 2 for the
# last one too, but its own 7x7 output there and its 569 M multiply-adds are only right with stride 1.
SEPARABLE = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


class MobileNet(nn.Sequential):
    """MobileNetV1 with every channel count multiplied by ``width`` (above 0, at most 1 in the paper).

    ``stem`` is the stride of the first convolution: 2 for 224-pixel images, 1 for 32-pixel ones. ``pixels`` is the size
    to which images are resized first, e.g. Tiny-ImageNet's 64 to 224 as AUSAM's authors did; 0 leaves them unchanged.
    """

    def __init__(
        self, width: float = 1.0, stem: int = 2, classes: int = 10, channels: int = 3, *, pixels: int = 0
    ) -> None:
        size = _scaled(32, width)
        layers = _convolution(channels, size, 3, stem)
        for channels_out, stride in SEPARABLE:
            outputs = _scaled(channels_out, width)
            layers += _convolution(size, size, 3, stride, groups=size)
            layers += _convolution(size, outputs, 1)
            size = outputs
        super().__init__(
            OrderedDict(
                resize=nn.Upsample((pixels, pixels), mode="bilinear") if pixels else nn.Identity(),
                features=nn.Sequential(*layers),
                pool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(),
                head=nn.Linear(size, classes),
            )
        )


def _scaled(channels: int, width: float) -> int:
    if not width * channels >= 1:
        raise ValueError(
            f"width={width} leaves none of {channels} channels. Use a multiplier of at least {1 / channels}."
        )
    return int(width * channels)


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
