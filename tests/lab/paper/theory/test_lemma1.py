"""Lemma 1 in closed form, and the correlations against scipy."""

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from ausam import SAM, SharpnessAware
from ausam.diagnostics import MEASURES, Diagnostics, agreement, pearson, spearman
from ausam_lab.paper.theory import average_dlp, lemma1, lemma1_measure
from tests.diagnostics.closed_forms import loop

values = st.lists(st.integers(-5, 5), min_size=3, max_size=30)  # few values: many ties


@given(values, st.integers(0, 2**31))
def test_correlations_are_scipys(a, seed):
    b = np.random.default_rng(seed).integers(-5, 5, len(a)) + 0.5 * np.array(a)
    if min(a) == max(a) or b.min() == b.max():
        assert np.isnan(pearson(a, b))
        assert np.isnan(spearman(a, b))
    else:
        assert pearson(a, b) == pytest.approx(scipy.stats.pearsonr(a, b).statistic, abs=1e-9)
        assert spearman(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic, abs=1e-9)


def test_agreement_by_hand():
    result = agreement([1.0, 2.0, float("nan"), 3.0], [2.0, 2.0, 1.0, 8.0])
    assert result.samples == 3
    assert result.relative_error == pytest.approx((1 + 0 + 5) / 12)
    assert result.ratio == pytest.approx(6 / 12)
    assert pearson([1e-200, 2e-200, 4e-200], [1.0, 2.0, 4.0]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="nothing to compare"):
        agreement([float("nan")], [1.0])
    with pytest.raises(ValueError, match=r"shape \(1,\) and truth \(2,\)"):
        agreement([1.0], [1.0, 2.0])


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
    result = average_dlp(history, norms, rho=0.5, decay=0.5)
    mean = np.array([7 / 3, 3.0, 3.0]) / 0.5
    ema = np.array([(0.25 * 4 + 0.5 * 2 + 1) / 1.75, (0.5 * 1 + 5) / 1.5, 3.0]) / 0.5
    last = np.array([1.0, 5.0, 3.0]) / 0.5
    for got, average in ((result.mean, mean), (result.ema, ema), (result.last, last)):
        assert got.relative_error == pytest.approx(np.abs(average - norms).mean() / norms.mean(), rel=1e-6)
        assert got.spearman == pytest.approx(scipy.stats.spearmanr(average, norms).statistic)
    assert result.visits == pytest.approx(2.0)


def test_refused(net):
    model, losses, x, y = net
    with pytest.raises(ValueError, match="rho is 0"):
        lemma1(model, losses, [(x, y)], 0)
    with pytest.raises(ValueError, match="no direction to perturb in"):
        lemma1(model, lambda x, y: 0 * losses(x, y), [(x, y)], 0.1)
    with pytest.raises(ValueError, match="0 < decay < 1"):
        average_dlp([[1.0]], [1.0], 0.1, decay=1.0)
    with pytest.raises(ValueError, match=r"\(epochs, n\) and \(n,\)"):
        average_dlp([1.0], [1.0], 0.1)


def test_diagnostics_measure_the_lemma_once_it_is_added(net, monkeypatch):
    model, losses, x, y = net
    monkeypatch.delitem(MEASURES, "lemma1", raising=False)  # another test may have added it
    with pytest.raises(ValueError, match="Choose from"):
        Diagnostics(what="lemma1")
    monkeypatch.setitem(MEASURES, "lemma1", lemma1_measure)
    diagnostics = Diagnostics(every=1, what="lemma1", rho=0.1)
    row = diagnostics(0, model, losses, [(x, y)])
    assert tuple(row) == diagnostics.columns
    assert row["dlp_norm_spearman"] == lemma1(model, losses, [(x, y)], 0.1).norm.spearman
