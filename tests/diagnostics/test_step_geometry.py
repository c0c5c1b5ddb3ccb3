"""The geometry of a step by hand, and who is chosen against plain loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ausam import SAM, Plain, SharpnessAware
from ausam.diagnostics import effective_sample_size, selection, step_geometry


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


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=20).filter(lambda w: max(w) > 1e-3))
def test_effective_sample_size(w):
    result = effective_sample_size(w)
    assert result == pytest.approx(sum(w) ** 2 / sum(v * v for v in w), rel=1e-9)
    assert 1 - 1e-9 <= result <= len(w) + 1e-9


@given(st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=8))
def test_visits_and_gaps_against_a_loop(chosen):
    result = selection([sorted(c) for c in chosen], 6)
    for i in range(6):
        seen = [i in c for c in chosen]
        assert result.visits[i] == sum(seen)
        runs = "".join("x" if s else "." for s in seen).split("x")
        assert result.longest_gap[i] == max(len(r) for r in runs)
    assert result.never == sum(v == 0 for v in result.visits)
    assert result.worst_gap == max(result.longest_gap)
    assert result.mean == pytest.approx(sum(result.visits) / 6)


def test_groups_by_hand():
    chosen = [torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1]), torch.tensor([0])]
    result = selection(
        chosen, 4, classes=torch.tensor([7, 7, 2, 2]), wrong=[True, False, False, False], scores=[4, 3, float("nan"), 1]
    )
    names = {k: [(g.name, g.samples, g.visits) for g in v] for k, v in result.groups.items()}
    assert names["class"] == [("2", 2, 1.0), ("7", 2, 2.5)]
    assert names["label"] == [("clean", 3, pytest.approx(4 / 3)), ("wrong", 1, 3.0)]
    assert names["score"] == [("1 to 1", 1, 1.0), ("3 to 3", 1, 2.0), ("4 to 4", 1, 3.0)]
    assert result.groups["label"][1].share == pytest.approx(3 / 1.75)
    assert (result.fewest, result.most) == (1, 3)
    assert result.effective == pytest.approx(49 / 15 / 4)


def test_refused(net):
    model, losses, x, y = net
    with pytest.raises(ValueError, match="outside the data set of 3 samples"):
        selection([[3]], 3)
    with pytest.raises(ValueError, match="chosen is empty"):
        selection([], 3)
    with pytest.raises(ValueError, match=r"classes has shape \(2,\)"):
        selection([[0]], 3, classes=[0, 1])
    with pytest.raises(ValueError, match="at least one above 0"):
        effective_sample_size([0.0, 0.0])
    with pytest.raises(ValueError, match="no direction"):
        step_geometry(model, lambda x, y: 0 * losses(x, y), [(x, y)], 0.1)
