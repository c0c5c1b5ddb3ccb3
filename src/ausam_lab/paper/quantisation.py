"""Quantisation-aware training (Jacob et al. 2018): weights and activations on a grid of a few bits, in floating point.

    r = S (q - Z),  q = clamp(round(r / S) + Z, 0, 2^bits - 1),  S = (high - low) / (2^bits - 1),  Z = round(-low / S)

A tensor has one scale S and one integer zero point Z. ``low <= 0 <= high``, so zero, which pads images, is on the grid.
In the backward pass, rounding is the identity inside the range and a constant outside ("straight through").
"""

from __future__ import annotations

import copy
import logging

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

log = logging.getLogger("ausam")

FIRST_AND_LAST = 8  # bits of the first and the last layer
MOMENTUM = 0.01  # weight of a new batch in the moving averages of the ranges, after the first 1 / MOMENTUM batches


def extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    """The range of a tensor, extended to include zero. No gradient passes through a range."""
    low, high = x.detach().aminmax()
    return low.float().clamp(max=0.0), high.float().clamp(min=0.0)


def grid(low: Tensor, high: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Scale and zero point of the grid over a range, which moves by less than a step so that zero is on the grid."""
    top = 2**bits - 1
    scale = ((high - low) / top).clamp(min=torch.finfo(torch.float32).eps)
    return scale, (-low / scale).round().clamp(0, top).to(torch.int32)


def on_grid(x: Tensor, scale: Tensor, zero_point: Tensor, bits: int) -> Tensor:
    """Round every value to the nearest point of the grid. Gradients pass straight through."""
    return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, 0, 2**bits - 1)


class MovingRange(nn.Module):
    """Activations: the range is a moving average over the training batches, and fixed in eval mode.

    The first batches have equal weights, 1/n each, until that is less than ``MOMENTUM``. The range is in buffers, so a
    step of ``SharpnessAware`` moves it once, in the pass at w.
    """

    low: Tensor
    high: Tensor
    seen: Tensor

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        """The batch on the grid."""
        if self.training:
            with torch.no_grad():
                self.seen += 1
                part = (1 / self.seen).clamp(min=MOMENTUM)
                for average, now in zip((self.low, self.high), extremes(x), strict=True):
                    average.lerp_(now, part)
        return on_grid(x, *self.grid(), self.bits)

    def grid(self) -> tuple[Tensor, Tensor]:
        """The current scale and zero point."""
        if not self.training and not self.seen:
            raise RuntimeError(
                "The ranges of this quantised network are unknown, because they come from batches. "
                "Train it, or run a few batches in train mode, before you evaluate it."
            )
        return grid(self.low, self.high, self.bits)


def weight_on_grid(w: Tensor, bits: int) -> Tensor:
    """Weights on the grid over their current range."""
    return on_grid(w, *grid(*extremes(w), bits), bits)


class QuantConv2d(nn.Conv2d):
    """A convolution with quantised inputs and weights. Its bias and output are not quantised."""

    inputs: MovingRange

    def forward(self, x: Tensor) -> Tensor:
        """Like nn.Conv2d."""
        out: Tensor = self._conv_forward(self.inputs(x), weight_on_grid(self.weight, self.inputs.bits), self.bias)
        return out


class QuantLinear(nn.Linear):
    """A linear layer with quantised inputs and weights. Its bias and output are not quantised."""

    inputs: MovingRange

    def forward(self, x: Tensor) -> Tensor:
        """Like nn.Linear."""
        return F.linear(self.inputs(x), weight_on_grid(self.weight, self.inputs.bits), self.bias)


KINDS: dict[type[nn.Module], type[nn.Module]] = {nn.Conv2d: QuantConv2d, nn.Linear: QuantLinear}


def quantize(model: nn.Module, bits: int = 4) -> nn.Module:
    """A copy of the network whose Conv2d and Linear layers quantise their inputs and weights to ``bits``, 2 to 8.

    The first and the last of these layers get eight bits. Pixels and class scores suffer most from few bits,
    and these layers cost least (DoReFa-Net, Zhou et al. 2016, does not quantise them at all). All parameters keep their
    names. The new buffers are ``LAYER.inputs.low``, ``.high`` and ``.seen``. Everything else (BatchNorm, additions,
    pooling) is unchanged.
    """
    if not 2 <= bits <= 8:
        raise ValueError(f"bits is {bits}. Use 2 <= bits <= 8.")
    model = copy.deepcopy(model)
    layers = [(name, m) for name, m in model.named_modules() if type(m) in KINDS]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no full-precision Conv2d or Linear layer to quantise.")
    others = [name for name, m in model.named_modules() if isinstance(m, tuple(KINDS)) and type(m) not in KINDS]
    if others:
        log.warning("Not quantised, because they are subclasses of Conv2d or Linear: %s.", ", ".join(others))
    for name, layer in layers:
        its_bits = FIRST_AND_LAST if name in (layers[0][0], layers[-1][0]) else bits
        # Change the class of the layer itself, so that names, shared weights, hooks and settings are kept.
        layer.__class__ = KINDS[type(layer)]
        layer.inputs = MovingRange(its_bits).to(next(layer.parameters()).device).train(layer.training)
    return model
