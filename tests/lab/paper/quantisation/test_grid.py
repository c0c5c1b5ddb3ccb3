"""The grid of a few bits, against slow arithmetic."""

from __future__ import annotations

import copy
from fractions import Fraction

import pytest
import torch
from torch import nn

from ausam_lab.paper.quantisation import MOMENTUM, MovingRange, extremes, grid, on_grid, quantize, weight_on_grid


@pytest.mark.parametrize(
    ("values", "bits", "scale", "zero_point"),
    [
        ([-1.0, 0.5, 2.0], 2, 1.0, 1),
        ([1.0, 3.0], 2, 1.0, 0),  # zero belongs to every range
        ([-30.0, -5.0], 4, 2.0, 15),
        ([-1.0, 1.2], 4, 2.2 / 15, 7),  # 6.8 steps are no integer: the range moves by a part of one
        ([0.0, 0.0], 4, torch.finfo(torch.float32).eps, 0),
    ],
)
def test_scale_and_zero_point_by_hand(values, bits, scale, zero_point):
    s, z = grid(*extremes(torch.tensor(values)), bits)
    assert s.item() == pytest.approx(scale)
    assert z.item() == zero_point


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_values_and_gradients_against_a_slow_transcription(bits):
    torch.manual_seed(bits)
    x = torch.randn(300, requires_grad=True)
    scale, zero_point = grid(torch.tensor(-1.1), torch.tensor(1.7), bits)  # some values are outside
    upstream = torch.randn(300)
    y = on_grid(x, scale, zero_point, bits)
    y.backward(upstream)
    s, z = Fraction(scale.item()), zero_point.item()
    inside = 0
    for value, after, gradient, above in zip(x.tolist(), y.tolist(), x.grad.tolist(), upstream.tolist(), strict=True):
        q = round(Fraction(value) / s) + z
        clamped = min(max(q, 0), 2**bits - 1)
        assert after == pytest.approx(float(s * (clamped - z)), abs=1e-6)
        assert gradient == (above if q == clamped else 0.0)
        inside += q == clamped
    assert 0 < inside < 300
    assert len(y.unique()) <= 2**bits


def test_a_range_gets_no_gradient():
    """The extremes of the weights define the range; their gradient is as everybody's, 1, and not the range's too."""
    w = torch.tensor([-2.0, -0.4, 0.3, 1.0], requires_grad=True)
    weight_on_grid(w, 4).sum().backward()
    assert w.grad.tolist() == [1.0, 1.0, 1.0, 1.0]
    x = torch.tensor([0.0, 0.5, 3.0], requires_grad=True)
    MovingRange(4)(x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


def test_the_moving_range_against_a_slow_transcription():
    torch.manual_seed(0)
    moving, low, high = MovingRange(4), 0.0, 0.0
    for n in range(1, 131):
        x = torch.randn(7) + 0.5
        moving(x)
        part = max(1 / n, MOMENTUM)  # a mean over the first hundred batches, then a moving average
        low += part * (min(*x.tolist(), 0.0) - low)
        high += part * (max(*x.tolist(), 0.0) - high)
        assert moving.low.item() == pytest.approx(low, rel=1e-4)
        assert moving.high.item() == pytest.approx(high, rel=1e-4)
    assert moving.seen.item() == 130
    before = copy.deepcopy(moving.state_dict())
    moving.eval()
    assert torch.equal(moving(100 * torch.ones(3)), torch.full((3,), moving(torch.tensor(1e6)).item()))  # clamped
    assert all(torch.equal(before[k], v) for k, v in moving.state_dict().items())


def test_ranges_that_no_batch_has_shaped_are_refused_in_eval_mode():
    model = quantize(nn.Sequential(nn.Linear(2, 2))).eval()
    with pytest.raises(RuntimeError, match=r"come from batches\. Train it, or run a few batches"):
        model(torch.ones(1, 2))
