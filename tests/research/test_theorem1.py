"""Theorem 1 and its corrected bound, on random and adversarial batches."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from research.theory.theorem1 import bounds, summary, theorem1

from tests.diagnostics.closed_forms import loop

# Squares must not underflow: a norm loses its precision there.
entry = st.floats(-1e3, 1e3).filter(lambda value: value == 0 or abs(value) > 1e-100)


@st.composite
def batches(draw):
    """Gradients of a batch, any at all: cancelling, zero, huge beside tiny; and some of its samples."""
    k, d = draw(st.integers(2, 8)), draw(st.integers(1, 4))
    g = draw(arrays(float, (k, d), elements=st.one_of(entry, st.just(0.0))))
    kept = draw(st.sets(st.integers(0, k - 1), min_size=1, max_size=k - 1))
    return g, sorted(kept)


def literal(g, kept, rho):
    """The quantities written out with plain loops."""
    k, d = g.shape
    left = [i for i in range(k) if i not in kept]

    def mean(rows):
        return [math.fsum(g[i][j] for i in rows) / len(rows) for j in range(d)]

    def norm(v):
        return math.sqrt(math.fsum(a * a for a in v))

    whole, some, rest = mean(range(k)), mean(kept), mean(left)
    return {
        "first_order": rho * abs(norm(whole) - norm(some)),
        "paper": rho * math.fsum(norm(g[i]) for i in left) / len(left),
        "corrected": rho * len(left) / k * norm([a - b for a, b in zip(rest, some, strict=True)]),
        "triangle": rho
        * len(left)
        / k
        * (math.fsum(norm(g[i]) for i in left) / len(left) + math.fsum(norm(g[i]) for i in kept) / len(kept)),
    }


@settings(max_examples=300)
@given(batches(), st.floats(1e-3, 1.0))
def test_the_corrected_bound_always_holds(batch, rho):
    g, kept = batch
    result = bounds(torch.from_numpy(g), kept, rho)
    for name, value in literal(g, kept, rho).items():
        assert getattr(result, name) == pytest.approx(value, rel=1e-9, abs=1e-9)
    assert result.corrected_holds
    assert result.triangle_holds
    assert result.paper_holds == (result.first_order <= result.paper + 1e-12 * (result.triangle + result.paper))


@given(arrays(float, (3, 4), elements=st.floats(0.1, 10)), st.integers(1, 5), st.floats(1e-3, 1.0))
def test_zero_gradients_left_out_break_the_papers_bound(kept_rows, zeros, rho):
    g = torch.from_numpy(np.concatenate([kept_rows, np.zeros((zeros, 4))]))
    result = bounds(g, [0, 1, 2], rho)
    assert result.paper == 0.0 < result.first_order
    assert not result.paper_holds
    # Here the corrected bound is attained: | |g_B| - |g_kept| | = M/K |g_kept|.
    assert result.first_order == pytest.approx(result.corrected)


def test_worst_case_search_finds_failures_of_the_paper_alone():
    rng = torch.Generator().manual_seed(0)
    fails = 0
    for _ in range(500):
        g = torch.randn(6, 3, generator=rng).double() * torch.tensor([5.0, 5, 5, 0.1, 0.1, 0.1])[:, None].double()
        result = bounds(g, [0, 1, 2], 0.1)
        fails += not result.paper_holds
        assert result.corrected_holds
    assert fails > 400  # large gradients kept, as the policy wants it


def test_real_batch_by_hand(net):
    model, losses, x, y = net
    kept, rho = [1, 4, 5, 9, 16], 0.15
    rows = loop(model, losses, x, y)
    weights = [p.detach().clone() for p in model.parameters()]

    def rise(which):
        g = rows[which].mean(0)
        e = rho * g / g.norm()
        with torch.no_grad():
            before = losses(x[which], y[which]).mean()
            for p, v in zip(model.parameters(), e.split([p.numel() for p in weights]), strict=True):
                p.add_(v.view(p.shape))
            after = losses(x[which], y[which]).mean()
            for p, w in zip(model.parameters(), weights, strict=True):
                p.copy_(w)
        return float(after - before), float(after - before - rho * g.norm())

    (ptf, o_all), (pts, o_kept) = rise(list(range(18))), rise(kept)
    result = theorem1(model, losses, (x, y), kept, rho)
    assert result.ptf == pytest.approx(ptf, rel=1e-9)
    assert result.pts == pytest.approx(pts, rel=1e-9)
    assert result.difference == pytest.approx(abs(ptf - pts), rel=1e-9)
    assert result.remainder == pytest.approx(abs(o_all - o_kept), rel=1e-6)
    for name, value in literal(rows.numpy(), kept, rho).items():
        assert getattr(result.bounds, name) == pytest.approx(value, rel=1e-9)
    assert result.corrected_holds


def test_summary(net):
    model, losses, x, y = net
    result = [theorem1(model, losses, (x, y), kept, 0.1) for kept in ([0, 1], [2, 3, 4], list(range(10)))]
    means = summary(result)
    assert means["batches"] == 3
    assert means["paper"] == pytest.approx(sum(f.bounds.paper for f in result) / 3)
    assert means["paper_fails"] == sum(not f.paper_holds for f in result) / 3
    assert means["corrected_fails"] == 0
    assert means["corrected_tightness"] <= 1


def test_kept_samples_without_gradient():
    model = torch.nn.Linear(1, 1, bias=False).double()
    x, y = torch.tensor([[0.0], [1.0]]).double(), torch.zeros(2).double()
    result = theorem1(model, lambda x, y: (model(x)[:, 0] - y).square(), (x, y), [0], 0.1)
    assert result.pts == 0.0
    assert result.corrected_holds
