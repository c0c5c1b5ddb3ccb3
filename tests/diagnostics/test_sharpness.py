"""Sharpness on bowls whose worst point is known."""

import numpy as np
import pytest
import torch
from torch import nn

from ausam.diagnostics import sharpness
from tests.diagnostics.closed_forms import flat


def bowl(curvature, weights):
    """L(w) = 1/2 sum_j h_j w_j^2 for every sample."""
    model = nn.Linear(len(weights), 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weights]))
    h = torch.tensor(curvature).double()
    return model, lambda x: (h * model.weight[0].square()).sum() / 2 * x[:, 0]


ONES = torch.ones(6, 1).double()


def test_at_the_minimum_of_a_bowl():
    model, losses = bowl([4.0, 1.0, 0.5], [0.0, 0.0, 0.0])
    result = sharpness(model, losses, [(ONES,)], [0.1, 0.5], steps=40, directions=4000)
    assert result.worst == pytest.approx([4.0 * r**2 / 2 for r in (0.1, 0.5)], rel=1e-6)
    # E u_j^2 = 1/3, so the average rise is rho^2 tr(H) / 6.
    for r, average, error in zip(result.rho, result.average, result.average_error, strict=True):
        assert abs(average - r**2 * 5.5 / 6) < 4 * error
    assert result.loss == 0.0


def test_on_the_side_of_a_round_bowl():
    # |g| = c |w|, and the worst point is straight uphill: L = c (|w| + rho)^2 / 2.
    model, losses = bowl([2.0, 2.0], [3.0, 4.0])
    result = sharpness(model, losses, [(ONES,)], 0.5, steps=1)
    assert result.worst == pytest.approx([2.0 * (5.5**2 - 25) / 2])


def test_on_the_side_of_a_long_bowl_against_a_search():
    model, losses = bowl([4.0, 0.5], [0.3, -1.0])
    angle = torch.linspace(0, 2 * torch.pi, 100_001).double()
    for rho in (0.1, 1.0):
        w = torch.stack([0.3 + rho * angle.cos(), -1.0 + rho * angle.sin()])
        best = float((torch.tensor([4.0, 0.5]).double() @ w.square() / 2).max()) - (4 * 0.09 + 0.5) / 2
        assert sharpness(model, losses, [(ONES,)], rho, steps=60).worst[0] == pytest.approx(best, rel=1e-6)


def test_adaptive_by_hand():
    # Maximise g'e over |e / T| <= rho, T = |w| + 0.01: e = rho T^2 g / |T g|; for one step that is the answer.
    model, losses = bowl([1.0, 3.0], [2.0, 0.5])
    scale, g = torch.tensor([2.01, 0.51]).double(), torch.tensor([2.0, 1.5]).double()
    e = 0.2 * scale**2 * g / (scale * g).norm()
    w = torch.tensor([2.0, 0.5]).double()
    h = torch.tensor([1.0, 3.0]).double()
    expected = float((h * ((w + e).square() - w.square())).sum()) / 2
    result = sharpness(model, losses, [(ONES,)], 0.2, adaptive=True, steps=1)
    assert result.worst[0] == pytest.approx(expected)
    assert result.adaptive


def test_m_sharpness_is_the_mean_of_the_groups(net):
    model, losses, x, y = net
    groups = [sharpness(model, losses, [(x[i : i + 5], y[i : i + 5])], 0.1).worst[0] for i in range(0, 18, 5)]
    expected = sum(g * n for g, n in zip(groups, (5, 5, 5, 3), strict=True)) / 18
    result = sharpness(model, losses, [(x, y)], 0.1, m=5)
    assert result.worst[0] == pytest.approx(expected, rel=1e-9)
    assert result.worst[0] >= sharpness(model, losses, [(x, y)], 0.1).worst[0]  # each group its own worst point
    assert result.m == 5


def test_one_step_is_sams(net):
    model, losses, x, y = net
    params = list(model.parameters())
    g = flat(torch.autograd.grad(losses(x, y).mean(), params))
    before = losses(x, y).mean().item()
    with torch.no_grad():
        for p, v in zip(params, (0.2 * g / g.norm()).split([p.numel() for p in params]), strict=True):
            p.add_(v.view(p.shape))
        after = float(losses(x, y).mean())
        for p, v in zip(params, (0.2 * g / g.norm()).split([p.numel() for p in params]), strict=True):
            p.sub_(v.view(p.shape))
    assert sharpness(model, losses, [(x, y)], 0.2, steps=1).worst[0] == pytest.approx(after - before, rel=1e-6)


def test_never_below_zero_on_a_hill():
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    result = sharpness(model, lambda x: -model.weight.square().sum() * x[:, 0], [(ONES,)], 0.3)
    assert result.worst == (0.0,)
    assert result.average[0] == pytest.approx(-0.09)


def test_radii_in_any_form(net):
    model, losses, x, y = net
    expected = sharpness(model, losses, [(x, y)], [0.1, 0.25])
    for radii in (np.array([0.1, 0.25]), torch.tensor([0.1, 0.25], dtype=torch.float64), (r for r in (0.1, 0.25))):
        assert sharpness(model, losses, [(x, y)], radii) == expected
    assert sharpness(model, losses, [(x, y)], np.float64(0.1)).worst == expected.worst[:1]


def test_refused(net):
    model, losses, x, y = net
    with pytest.raises(ValueError, match="rho holds no radius"):
        sharpness(model, losses, [(x, y)], [])
    with pytest.raises(ValueError, match="rho is -1"):
        sharpness(model, losses, [(x, y)], [0.1, -1])
    with pytest.raises(ValueError, match="directions is 1"):
        sharpness(model, losses, [(x, y)], 0.1, directions=1)
    with pytest.raises(ValueError, match="m is 0"):
        sharpness(model, losses, [(x, y)], 0.1, m=0)
