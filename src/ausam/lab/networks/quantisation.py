"""Quantisation-aware training (Jacob et al. 2018): weights and activations on a grid of a few bits, in floating point.

    r = S (q - Z),  q = clamp(round(r / S) + Z, 0, 2^bits - 1),  S = (high - low) / (2^bits - 1),  Z = round(-low / S)

One scale S and one integer zero point Z a tensor; ``low <= 0 <= high``: zero, which pads images, is on the grid.
Backwards, rounding counts as the identity inside the range and as a constant outside ("straight through").
"""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

log = logging.getLogger("ausam")

MOMENTUM = 0.01  # part of a new batch in the moving averages of the ranges, once there have been as many batches


def extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest value of a tensor, and zero between them. No gradient goes through a range."""
    low, high = x.detach().aminmax()
    return low.float().clamp(max=0.0), high.float().clamp(min=0.0)


def grid(low: Tensor, high: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Scale and zero point of the grid over a range; the range moves by less than a step, so that zero is on it."""
    top = 2**bits - 1
    scale = ((high - low) / top).clamp(min=torch.finfo(torch.float32).eps)
    return scale, (-low / scale).round().clamp(0, top).to(torch.int32)


def on_grid(x: Tensor, scale: Tensor, zero_point: Tensor, bits: int) -> Tensor:
    """Every value moved to the nearest point of the grid, straight through for gradients."""
    return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, 0, 2**bits - 1)


class MovingRange(nn.Module):
    """Activations: the range is a moving average over the training batches, and stays as it is in eval mode.

    The first batches count alike, 1/n each, until that is less than ``MOMENTUM``. All of it is in buffers, so a step of
    ``SharpnessAware`` moves it once, in the pass at w.
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
        """Scale and zero point as they are now."""
        if not self.training and not self.seen:
            raise RuntimeError(
                "The ranges of this quantised network are not known yet: they come from batches. "
                "Train it, or show it some in train mode, before it is evaluated or exported."
            )
        return grid(self.low, self.high, self.bits)


class OwnRange(nn.Module):
    """Weights: the range is that of the tensor itself, as it is at this moment."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits

    def forward(self, x: Tensor) -> Tensor:
        """The weights on their grid."""
        return on_grid(x, *grid(*extremes(x), self.bits), self.bits)


class QuantConv2d(nn.Conv2d):
    """A convolution of quantised inputs with quantised weights; its bias and its output are not quantised."""

    inputs: Any  # MovingRange and OwnRange; once exported, Fixed and Integers
    weights: Any

    def forward(self, x: Tensor) -> Tensor:
        """As nn.Conv2d."""
        out: Tensor = self._conv_forward(self.inputs(x), self.weights(self.weight), self.bias)
        return out


class QuantLinear(nn.Linear):
    """A linear layer, likewise."""

    inputs: Any
    weights: Any

    def forward(self, x: Tensor) -> Tensor:
        """As nn.Linear."""
        return F.linear(self.inputs(x), self.weights(self.weight), self.bias)


KINDS: dict[type[nn.Module], type[nn.Module]] = {nn.Conv2d: QuantConv2d, nn.Linear: QuantLinear}


def quantize(model: nn.Module, bits: int = 4, first_last: int = 8) -> nn.Module:
    """A copy of the network whose Conv2d and Linear layers quantise their inputs and weights to ``bits``, 2 to 8.

    The first and the last of these layers get ``first_last`` bits: pixels and class scores suffer most from few, and
    their layers cost least (DoReFa-Net, Zhou et al. 2016, leaves them out altogether). All parameters keep their names;
    the new buffers are ``LAYER.inputs.low``, ``.high`` and ``.seen``. All else (BatchNorm, additions, pooling) stays.
    """
    for name, value in (("bits", bits), ("first_last", first_last)):
        if not 2 <= value <= 8:
            raise ValueError(f"{name} is {value}; use 2 <= {name} <= 8.")
    model = copy.deepcopy(model)
    layers = [(name, m) for name, m in model.named_modules() if type(m) in KINDS]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no Conv2d and no Linear layer in full precision to quantise.")
    others = [name for name, m in model.named_modules() if isinstance(m, tuple(KINDS)) and type(m) not in KINDS]
    if others:
        log.warning("Not quantised because they are of a class of their own: %s.", ", ".join(others))
    for name, layer in layers:
        its_bits = first_last if name in (layers[0][0], layers[-1][0]) else bits
        device = next(layer.parameters()).device
        # The layer itself becomes its quantised kind: names, shared weights, hooks and settings stay without copying.
        layer.__class__ = KINDS[type(layer)]
        layer.inputs = MovingRange(its_bits).to(device).train(layer.training)
        layer.weights = OwnRange(its_bits)
    return model


class Integers(nn.Module):
    """Weights of an exported network: integers, and the two numbers that give them their values."""

    scale: Tensor
    zero_point: Tensor

    def __init__(self, scale: Tensor, zero_point: Tensor, bits: int) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("zero_point", zero_point)
        self.top = 2**bits - 1

    def forward(self, q: Tensor) -> Tensor:
        """Their values: S (q - Z)."""
        return (q.float() - self.zero_point) * self.scale


class Fixed(Integers):
    """Activations of an exported network, in plain arithmetic: torch.export cannot trace torch's own operator."""

    def forward(self, x: Tensor) -> Tensor:
        """The batch on the grid."""
        q = (x * self.scale.reciprocal()).round() + self.zero_point
        return (q.clamp(0, self.top) - self.zero_point) * self.scale


@torch.no_grad()
def export(model: nn.Module, x: Tensor) -> Any:
    """The trained network as a ``torch.export`` program for batches like ``x``, of any length above 1.

    Its weights are uint8 integers below 2^bits; ``LAYER.weights`` and ``LAYER.inputs`` hold scale and zero point. It
    answers as the network does in eval mode, and ``torch.export.save`` keeps it in a file.
    """
    model = copy.deepcopy(model).eval()
    for layer in model.modules():
        if isinstance(layer, QuantConv2d | QuantLinear):
            weight, bits = layer.weight, layer.weights.bits
            scale, zero_point = grid(*extremes(weight), bits)
            integers = (on_grid(weight, scale, zero_point, bits) / scale).round() + zero_point
            del layer.weight
            layer.register_buffer("weight", integers.to(torch.uint8))
            layer.weights = Integers(scale, zero_point, bits)
            scale, zero_point = layer.inputs.grid()
            layer.inputs = Fixed(scale, zero_point, bits)
    return torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
