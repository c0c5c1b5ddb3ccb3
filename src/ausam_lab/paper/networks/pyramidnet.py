"""Pyramidal residual networks (Han, Kim & Kim 2017, "Deep Pyramidal Residual Networks")."""

from collections import OrderedDict
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional


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
    """Additive PyramidNet of basic blocks: block k of N = (depth - 2) / 2 has ``floor(16 + widen * k / N)`` channels.

    ``depth`` is 8, 14, 20, ..., 110, ... (three stages of ``(depth - 2) / 6`` blocks); ``widen`` is the paper's alpha,
    the channels added over the whole network, at least 0.
    """

    def __init__(self, depth: int = 110, widen: int = 270, classes: int = 10, channels: int = 3) -> None:
        blocks, rest = divmod(depth - 2, 6)
        if rest or blocks < 1:
            raise ValueError(
                f"PyramidNet has three stages of (depth - 2) / 6 blocks, which depth={depth} does not allow. "
                "Use 8, 14, 20, ..., 110, ..."
            )
        total = 3 * blocks
        sizes = [16 + widen * k // total for k in range(total + 1)]
        layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)]
        for k, (inputs, outputs) in enumerate(pairwise(sizes)):
            layers += [Pyramidal(inputs, outputs, 2 if k in (blocks, 2 * blocks) else 1)]
        super().__init__(
            OrderedDict(
                features=nn.Sequential(*layers, nn.BatchNorm2d(sizes[-1]), nn.ReLU()),
                pool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(),
                head=nn.Linear(sizes[-1], classes),
            )
        )
