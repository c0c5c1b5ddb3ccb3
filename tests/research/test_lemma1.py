"""Lemma 1 in closed form."""

import numpy as np
import pytest
import scipy.stats
import torch
from research.theory.lemma1 import average_dlp, lemma1

from ausam import SAM, SharpnessAware
from tests.diagnostics.closed_forms import loop


def test_linear_regression_by_hand(linear):
    # L_i(w + e) - L_i(w) = r_i <x_i, e> + <x_i, e>^2 / 2, with e = rho g / |g|.
    model, losses, x, y = linear
    rho = 0.3
    residual = x @ model.weight[0].detach() - y
    rows = residual[:, None] * x
    unit = rows.mean(0) / rows.mean(0).norm()
    along = rho * (x @ unit)
    result = lemma1(model, losses, [(x, y)], rho)
    np.testing.assert_allclose(result.dlp, (residual * along + along**2 / 2).abs() / rho, rtol=1e-10)
    np.testing.assert_allclose(result.norms, rows.norm(dim=1), rtol=1e-10)
    np.testing.assert_allclose(result.projections, (rows @ unit).abs(), rtol=1e-10)
    assert result.cosine == pytest.approx(float(((rows @ unit).abs() / rows.norm(dim=1)).mean()))


def test_dlp_is_that_of_the_optimizer(net):
    model, losses, x, y = net
    result = lemma1(model, losses, [(x, y)], 0.2)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), SAM(rho=0.2), model)
    np.testing.assert_allclose(result.dlp, opt.backward(losses, x, y).sharpness / 0.2, rtol=1e-9)


def test_tends_to_the_projection_and_not_to_the_norm(net):
    model, losses, x, y = net
    near, far = (lemma1(model, losses, [(x, y)], rho) for rho in (1e-4, 1e-1))
    assert near.projection.relative_error < 1e-3 < far.projection.relative_error
    assert near.norm.relative_error > 0.1
    assert near.projection.spearman == pytest.approx(1.0)


def test_each_batch_has_its_own_perturbation(net):
    model, losses, x, y = net
    both = lemma1(model, losses, [(x[:9], y[:9]), (x[9:], y[9:])], 0.1)
    parts = [lemma1(model, losses, [(x[s], y[s])], 0.1) for s in (slice(0, 9), slice(9, 18))]
    np.testing.assert_allclose(both.dlp, [*parts[0].dlp, *parts[1].dlp], rtol=1e-9)
    g = loop(model, losses, x[:9], y[:9]).mean(0)
    assert not torch.allclose(g, loop(model, losses, x[9:], y[9:]).mean(0))


def test_averages_by_hand():
    history = np.array([[4.0, 1.0, np.nan], [2.0, np.nan, 3.0], [1.0, 5.0, np.nan]])
    norms = np.array([1.0, 2.0, 4.0])
    result = average_dlp(history, torch.from_numpy(norms), rho=0.5, decay=0.5)
    mean = np.array([7 / 3, 3.0, 3.0]) / 0.5
    ema = np.array([(0.25 * 4 + 0.5 * 2 + 1) / 1.75, (0.5 * 1 + 5) / 1.5, 3.0]) / 0.5
    last = np.array([1.0, 5.0, 3.0]) / 0.5
    for got, average in ((result.mean, mean), (result.ema, ema), (result.last, last)):
        assert got.relative_error == pytest.approx(np.abs(average - norms).mean() / norms.mean(), rel=1e-6)
        assert got.spearman == pytest.approx(scipy.stats.spearmanr(average, norms).statistic)
    assert result.visits == pytest.approx(2.0)
