"""Curvature against exact Hessians."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ausam.diagnostics import hessian_eigenvalues, hessian_trace
from ausam.diagnostics.hessian import largest
from ausam.diagnostics.objective import Objective
from tests.diagnostics.closed_forms import full_hessian


def test_products_against_the_exact_hessian(net):
    model, losses, x, y = net
    exact = full_hessian(model, losses, x, y)
    v = torch.randn(len(exact), generator=torch.Generator().manual_seed(0)).double()
    for chunk in (1, 7, 100):
        result = Objective(model.eval(), losses, [(x[:5], y[:5]), (x[5:], y[5:])], chunk=chunk).hvp(v)
        torch.testing.assert_close(result, exact @ v, rtol=1e-9, atol=1e-12)


def test_linear_regression_by_hand(linear):
    model, losses, x, y = linear
    exact = x.T @ x / len(x)
    expected = torch.linalg.eigvalsh(exact).flip(0)
    result = hessian_eigenvalues(model, losses, [(x, y)], k=3, tolerance=1e-8)
    assert result.values == pytest.approx(expected.tolist(), rel=1e-9)
    assert result.converged
    assert result.samples == 12
    trace = hessian_trace(model, losses, [(x, y)], probes=2000)
    assert abs(trace.value - float(exact.trace())) < 4 * trace.error


@pytest.mark.parametrize("k", [1, 3, 8, 43])
def test_eigenvalues_of_a_network(net, k):
    model, losses, x, y = net
    exact = torch.linalg.eigvalsh(full_hessian(model, losses, x, y)).flip(0)
    result = hessian_eigenvalues(model, losses, [(x, y)], k=k, steps=60, tolerance=1e-6)
    assert result.values == pytest.approx(exact[:k].tolist(), abs=1e-6)
    assert result.converged


def test_trace_of_a_network(net):
    model, losses, x, y = net
    exact = full_hessian(model, losses, x, y)
    result = hessian_trace(model, losses, [(x, y)], probes=400, seed=3)
    assert abs(result.value - float(exact.trace())) < 4 * result.error
    # The variance of z'Hz with signs is twice the squared sum of what is off the diagonal.
    off = exact - torch.diag(exact.diagonal())
    assert result.error == pytest.approx(float((2 * off.square().sum() / 400).sqrt()), rel=0.2)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=12), st.integers(1, 12), st.integers(0, 2**20))
def test_any_spectrum(spectrum, k, seed):
    n, k = len(spectrum), min(k, len(spectrum))
    q, _ = torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(seed)).double())
    matrix = q @ torch.diag(torch.tensor(spectrum).double()) @ q.T
    values, _ = largest(lambda v: matrix @ v, torch.zeros(n).double(), k, 20, seed=seed)
    assert values == pytest.approx(sorted(spectrum, reverse=True)[:k], abs=1e-6)


def test_says_when_it_has_not_converged(net):
    model, losses, x, y = net
    result = hessian_eigenvalues(model, losses, [(x, y)], k=2, steps=3, tolerance=1e-6)
    assert not result.converged
    exact = torch.linalg.eigvalsh(full_hessian(model, losses, x, y))
    for value, residual in zip(result.values, result.residuals, strict=True):
        assert float((exact - value).abs().min()) <= residual * (1 + 1e-6)


def test_a_residual_covers_the_rounding_of_single_precision():
    rng = torch.Generator().manual_seed(0)
    q, _ = torch.linalg.qr(torch.randn(200, 200, generator=rng).double())
    spectrum = torch.cat([torch.tensor([30.0, 20.0, 10.0]), torch.rand(197, generator=rng)]).double()
    matrix = (q @ torch.diag(spectrum) @ q.T).float()
    matrix = (matrix + matrix.T) / 2
    exact = torch.linalg.eigvalsh(matrix.double())
    values, residuals = largest(lambda v: matrix @ v, torch.zeros(200), 3, 60, seed=0)
    for value, residual in zip(values, residuals, strict=True):
        assert 0 < float((exact - value).abs().min()) <= residual <= 1e-5 * 30


def test_refused(net):
    model, losses, x, y = net
    with pytest.raises(ValueError, match="the Hessian has 43 eigenvalues"):
        hessian_eigenvalues(model, losses, [(x, y)], k=44)
    with pytest.raises(ValueError, match="probes is 1"):
        hessian_trace(model, losses, [(x, y)], probes=1)
