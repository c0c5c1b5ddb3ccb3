"""The geometry of a step by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ausam import SAM, Plain, SharpnessAware
from ausam.diagnostics import step_geometry
from ausam.diagnostics.geometry import spearman


def test_by_hand_on_a_bowl():
    # L = 1/2 (4 w_1^2 + w_2^2), so g = (4 w_1, w_2) and g_SAM = g + rho (4 g_1, g_2) / |g|.
    model = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, 1.0]]))
    h = torch.tensor([4.0, 1.0]).double()
    result = step_geometry(
        model, lambda x: (h * model.weight[0].square()).sum() / 2 * x[:, 0], [(torch.ones(3, 1).double(),)], rho=0.3
    )
    g = torch.tensor([2.0, 1.0]).double()
    sam = g + 0.3 * h * g / g.norm()
    assert result.gradient_norm == pytest.approx(5**0.5)
    assert result.sam_norm == pytest.approx(float(sam.norm()))
    cosine = float(g @ sam / g.norm() / sam.norm())
    assert result.cosine == pytest.approx(cosine)
    assert result.descent == pytest.approx(float(g @ sam) / 5)
    assert result.orthogonal == pytest.approx((1 - cosine**2) ** 0.5)
    assert result.loss == pytest.approx(1.0)
    e = 0.3 * g / g.norm()
    assert result.perturbed == pytest.approx(float((h * (torch.tensor([0.5, 1.0]) + e).square()).sum()) / 2)


def test_gradients_are_those_of_the_optimizer(net):
    model, losses, x, y = net
    result = step_geometry(model, losses, [(x[:7], y[:7]), (x[7:], y[7:])], rho=0.2)
    got = []
    for method in (Plain(), SAM(rho=0.2)):
        opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), method, model)
        opt.zero_grad()
        opt.backward(losses, x, y)
        got.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert result.gradient_norm == pytest.approx(float(got[0].norm()), rel=1e-9)
    assert result.sam_norm == pytest.approx(float(got[1].norm()), rel=1e-6)
    assert result.cosine == pytest.approx(float(torch.cosine_similarity(*got, dim=0)), rel=1e-9)


def test_the_loss_and_its_difference_rank_the_samples():
    """Of L_i = c_i w^2 / 2 + b_i, the difference ranks as c, whatever b."""
    model = nn.Linear(1, 1, bias=False).double()
    c = torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    for b, rank in (([0.0, 0.0, 0.0, 0.0], 1.0), ([90.0, 60.0, 30.0, 0.0], -1.0), ([0.0, 90.0, 0.0, 0.0], 0.4)):

        def losses(c, b):
            return c * model.weight[0, 0].square() / 2 + b

        geometry = step_geometry(model, losses, [(c, torch.tensor(b).double())], rho=0.1)
        assert geometry.loss_rank == pytest.approx(rank)
    assert math.isnan(step_geometry(model, losses, [(c[:1], c[:1])], rho=0.1).loss_rank)


@given(st.lists(st.integers(0, 4), min_size=3, max_size=12), st.randoms())
def test_spearman_with_ties_against_scipy(values, shuffle):
    stats = pytest.importorskip("scipy.stats")
    other = values[:]
    shuffle.shuffle(other)
    result = spearman(torch.tensor(values), torch.tensor(other))
    if len(set(values)) < 2:
        assert math.isnan(result)
    else:
        assert result == pytest.approx(stats.spearmanr(values, other).statistic, abs=1e-9)


def test_refused(net):
    model, losses, x, y = net
    with pytest.raises(ValueError, match="no direction"):
        step_geometry(model, lambda x, y: 0 * losses(x, y), [(x, y)], 0.1)
