"""Theorem 4: inclusion probabilities against enumeration, expectations against draws, bias by hand."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from research.theory.theorem4 import expected_selection, inclusion_probabilities, theorem4

from ausam import AUSampling, Full, Random, Scores, TopLoss
from tests.diagnostics.closed_forms import loop


def enumerated(odds, k):
    """Probability of being drawn, summed over every order in which k samples can be drawn one by one."""
    p = np.zeros(len(odds))
    for order in itertools.permutations(range(len(odds)), k):
        chance, left = 1.0, sum(odds)
        for i in order:
            chance *= odds[i] / left
            left -= odds[i]
        p[list(order)] += chance
    return p


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=6), st.data())
def test_inclusion_against_enumeration(odds, data):
    k = data.draw(st.integers(1, len(odds)))
    np.testing.assert_allclose(inclusion_probabilities(odds, k), enumerated(odds, k), atol=1e-9)


def test_inclusion_with_very_unequal_odds():
    odds = [1e-3, 0.01, 0.1, 1.0, 1.0]
    np.testing.assert_allclose(inclusion_probabilities(odds, 2), enumerated(odds, 2), atol=1e-7)
    np.testing.assert_allclose(inclusion_probabilities(np.ones(64), 32), 0.5, atol=1e-9)
    assert inclusion_probabilities(np.linspace(0.1, 1, 64), 32).sum() == pytest.approx(32)
    for bad in ([0.0, 1.0], [1e-5, 1.0]):
        with pytest.raises(ValueError, match="within a factor of 1000"):
            inclusion_probabilities(bad, 1)


def table(n, decay=1.0):
    scores = Scores(n, decay)
    scores.record(torch.arange(n), torch.linspace(0.1, 2, n) ** 2)
    return scores


@pytest.mark.parametrize("policy", [AUSampling(alpha=0.4, ramp=0), Random(0.4), TopLoss(0.4), Full(), AUSampling(1.0)])
def test_exact_expectations_against_draws(policy):
    n, draws = 12, 40_000
    candidates = torch.arange(n)
    scores = table(n, policy.decay)
    result = expected_selection(policy, scores, 5, candidates)
    assert result.exact or policy.alpha == 1.0
    rng = torch.Generator().manual_seed(3)
    kept, weight = policy.choose(scores, 5, candidates.expand(draws, n), rng)
    assert weight is None
    drawn = np.bincount(kept.flatten().numpy(), minlength=n) / draws
    np.testing.assert_allclose(result.inclusion, drawn, atol=4 * 0.5 / draws**0.5)
    np.testing.assert_allclose(result.coefficient, result.inclusion / result.inclusion.sum(), rtol=1e-9)


def test_unbiased_weights_are_unbiased_and_estimated():
    result = expected_selection(AUSampling(0.5, ramp=0, unbiased=True), table(12), 5, torch.arange(12), draws=20_000)
    assert not result.exact
    np.testing.assert_allclose(result.coefficient, 1 / 12, atol=0.005)
    assert not np.allclose(result.inclusion, 0.5, atol=0.05)


def test_first_epochs_use_everything(net):
    result = expected_selection(AUSampling(0.5), table(12), 0, torch.arange(12), draws=20)
    np.testing.assert_allclose(result.inclusion, 1.0)
    np.testing.assert_allclose(result.coefficient, 1 / 12)


@pytest.mark.parametrize("policy", [AUSampling(alpha=0.5, ramp=0), TopLoss(0.5), Random(0.5)])
def test_bias_by_hand(net, policy):
    model, losses, x, y = net
    rho, n = 0.1, 18
    scores = table(n, policy.decay)
    rows = loop(model, losses, x, y)
    p = expected_selection(policy, scores, 5, torch.arange(n)).inclusion
    g = rows.mean(0)
    expected = sum(p[i] / p.sum() * rows[i] for i in range(n))
    result = theorem4(model, losses, (x, y), policy, scores, 5, index=torch.arange(n), rho=rho)
    assert result.exact
    assert result.error == 0
    assert result.bias == pytest.approx(float((expected - g).norm()), rel=1e-6, abs=1e-12)
    assert result.relative == pytest.approx(float((expected - g).norm() / g.norm()), rel=1e-6, abs=1e-12)
    assert result.cosine == pytest.approx(float(torch.cosine_similarity(expected, g, dim=0)), rel=1e-9)
    along = [float(r @ g / g.norm()) for r in rows]
    norms = [float(r.norm()) for r in rows]
    all_samples = sum(along) / n
    kept = sum(p[i] * along[i] for i in range(n)) / p.sum()
    assert result.gap == pytest.approx(rho * abs(all_samples - kept), rel=1e-6, abs=1e-12)
    written = sum(p[i] * along[i] for i in range(n)) / n
    assert result.gap_as_written == pytest.approx(rho * abs(all_samples - written), rel=1e-9)
    assert result.paper == pytest.approx(rho * sum((1 - p[i]) * norms[i] for i in range(n)) / n)
    corrected = sum(abs(1 - n * p[i] / p.sum()) * norms[i] for i in range(n)) / n
    assert result.corrected == pytest.approx(rho * corrected, abs=1e-9)
    assert result.corrected_holds
    assert result.gap_as_written <= result.paper * (1 + 1e-9)  # what the proof does prove


def test_the_bound_fails_where_what_is_left_out_has_no_gradient(linear):
    model, losses, x, _ = linear
    y = (x @ model.weight[0]).detach()
    y[:6] += 1.0  # six samples have all the gradient, and are kept
    scores = Scores(12, 0.0)
    scores.record(torch.arange(12), losses(x, y).detach())
    result = theorem4(model, losses, (x, y), TopLoss(0.5), scores, 1, index=torch.arange(12), rho=0.1)
    assert result.paper == pytest.approx(0.0, abs=1e-12)
    assert result.relative == pytest.approx(1.0)  # the kept half's mean is twice that of all
    assert not result.paper_holds
    assert result.corrected_holds


def test_noise_of_draws_is_taken_off(net):
    model, losses, x, y = net
    policy = AUSampling(0.5, ramp=0, unbiased=True)
    few, many = (
        theorem4(model, losses, (x, y), policy, table(18), 5, index=torch.arange(18), rho=0.1, draws=d)
        for d in (100, 10_000)
    )
    assert many.error < few.error / 5
    assert few.bias < 3 * few.error
    assert many.bias < 3 * many.error
