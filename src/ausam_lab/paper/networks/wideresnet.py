"""Wide residual networks (Zagoruyko & Komodakis 2016, "Wide Residual Networks")."""

from collections import OrderedDict

from torch import Tensor, nn


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
    """WideResNet-``depth``-``widen`` without dropout.

    Three stages of ``(depth - 4) / 6`` blocks with 16, 32 and 64 times ``widen`` channels: ``depth`` is 10, 16, 22,
    28, ...; ``widen`` is at least 1.
    """

    def __init__(self, depth: int = 28, widen: int = 10, classes: int = 10, channels: int = 3) -> None:
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1:
            raise ValueError(
                f"WideResNet has three stages of (depth - 4) / 6 blocks, which depth={depth} does not allow. "
                "Use 10, 16, 22, 28, ..."
            )
        layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, 1, 1, bias=False)]
        size = 16
        for stage in range(3):
            width = 16 * widen * 2**stage
            for position in range(blocks):
                layers.append(PreActivation(size, width, 2 if stage > 0 and position == 0 else 1))
                size = width
        super().__init__(
            OrderedDict(
                features=nn.Sequential(*layers, nn.BatchNorm2d(size), nn.ReLU()),
                pool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(),
                head=nn.Linear(size, classes),
            )
        )
