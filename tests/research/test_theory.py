"""Each claim of research/theory/README.md, against closed forms, enumeration and literal runs."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from research.theory.lemma1 import lemma1
from research.theory.theorem1 import bounds
from research.theory.theorem2 import theorem2
from research.theory.theorem3 import LogisticRegression, Quadratic, counterexample, theorem3
from research.theory.theorem4 import expected_selection, inclusion_probabilities, theorem4
from torch import nn

from ausam import SAM, AUSampling, Random, Scores, SharpnessAware, TopLoss

# -- lemma 1: DLP / rho is the projection of a sample's gradient on the batch's, not its norm ------------------------


def test_lemma1_by_hand(linear):
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


def test_dlp_is_that_of_the_optimizer_and_tends_to_the_projection(net):
    model, losses, x, y = net
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), SAM(rho=0.2), model)
    near, middle, far = (lemma1(model, losses, [(x, y)], rho) for rho in (1e-4, 0.2, 1e-1))
    np.testing.assert_allclose(middle.dlp, opt.backward(losses, x, y).sharpness / 0.2, rtol=1e-9)
    assert near.projection.relative_error < 1e-3 < far.projection.relative_error
    assert near.norm.relative_error > 0.1


# -- theorem 1: the paper's bound can fail, the corrected one cannot -------------------------------------------------

# Squares must not underflow: a norm loses its precision there.
entry = st.floats(-1e3, 1e3).filter(lambda value: value == 0 or abs(value) > 1e-100)


@st.composite
def batches(draw):
    """Gradients of a batch, any at all: cancelling, zero, huge beside tiny; and some of its samples."""
    k, d = draw(st.integers(2, 8)), draw(st.integers(1, 4))
    g = draw(arrays(float, (k, d), elements=st.one_of(entry, st.just(0.0))))
    return g, sorted(draw(st.sets(st.integers(0, k - 1), min_size=1, max_size=k - 1)))


@settings(max_examples=200)
@given(batches(), st.floats(1e-3, 1.0))
def test_theorem1_by_hand(batch, rho):
    g, kept = batch
    left = [i for i in range(len(g)) if i not in kept]
    result = bounds(torch.from_numpy(g), kept, rho)
    whole, some = (np.linalg.norm(g[rows].mean(0)) for rows in (range(len(g)), kept))
    apart = np.linalg.norm(g[left].mean(0) - g[kept].mean(0))
    close = {"rel": 1e-9, "abs": 1e-9}
    assert result.first_order == pytest.approx(rho * abs(whole - some), **close)
    assert result.paper == pytest.approx(rho * np.linalg.norm(g[left], axis=1).mean(), **close)
    assert result.corrected == pytest.approx(rho * len(left) / len(g) * apart, **close)
    assert result.corrected_holds


def test_zero_gradients_left_out_break_the_papers_bound():
    g = torch.cat([torch.rand(3, 4) + 0.1, torch.zeros(2, 4)]).double()
    result = bounds(g, [0, 1, 2], 0.1)
    assert result.paper == 0.0 < result.first_order
    assert not result.paper_holds
    assert result.first_order == pytest.approx(result.corrected)  # attained: | |g_B| - |g_kept| | = M/K |g_kept|


# -- theorem 2: gradient norms drift little under a square schedule, and the bound grows under a cosine --------------


def descent(rates):
    """Gradient descent on mean_i (w - a_i)^2 h_i / 2 in one dimension: the weights before each epoch."""
    h, a = torch.tensor([1.0, 0.5, 2.0]).double(), torch.tensor([1.0, -1.0, 0.0]).double()
    model = nn.Linear(1, 1, bias=False).double()

    def losses(h, a):
        return h * (model(torch.ones(len(h), 1).double())[:, 0] - a).square() / 2

    path, largest, w = [], 0.0, 3.0
    for eta in (*rates, 0.0):
        path.append(w)
        g = float((h * (w - a)).mean())
        largest = max(largest, abs(g))
        w -= eta * g
    states = [{"weight": torch.tensor([[v]]).double()} for v in path]
    return model, losses, h, a, states, np.array(path), largest


def test_theorem2_by_hand():
    rates = [0.4 / t**2 for t in range(1, 6)]
    model, losses, h, a, states, w, largest = descent(rates)
    result = theorem2(model, losses, [(h, a)], states, rates, iterations=1, gradient_bound=largest)
    norms = np.abs(h.numpy() * (w[:, None] - a.numpy()))
    for j, t in enumerate(result.epochs):
        gap = np.abs(norms[t - 1] - norms[: t - 1].mean(0))
        assert result.largest[j] == pytest.approx(gap.max())
        double_sum = sum(rates[i - 1] for s in range(1, t) for i in range(s, t))  # every step after each s < t
        assert result.schedule_bound[j] == pytest.approx(result.tau * largest * double_sum / (t - 1))
        assert result.path_bound[j] == pytest.approx(result.tau * np.abs(w[t - 1] - w[: t - 1]).mean())
    assert result.tau == pytest.approx(2.0)  # the largest curvature of a sample
    assert result.applies
    assert result.holds
    assert result.schedule_holds


def test_the_schedule_bound_grows_under_a_cosine():
    rates = [0.2 * (1 + math.cos(math.pi * t / 40)) for t in range(39)]
    model, losses, h, a, states, _, largest = descent(rates)
    result = theorem2(model, losses, [(h, a)], states, rates, iterations=1, gradient_bound=largest)
    assert not result.applies
    assert result.schedule_bound[-1] > 4 * result.schedule_bound[0]


# -- theorem 3: the corrected bound holds, the paper's has a counterexample ------------------------------------------


def logistic(n=40, d=3):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=rng).double()
    return LogisticRegression(x, torch.where(torch.rand(n, generator=rng) < 0.5, -1.0, 1.0).double(), l2=0.01)


def test_the_run_is_the_algorithm_of_the_proof():
    # With alpha = 1 and the whole data in a batch nothing is random: every run is plain descent.
    problem = logistic()
    eta, rho = 0.3 / problem.tau, 0.2 / problem.tau
    result = theorem3(problem, alpha=1.0, batch=40, eta=eta, rho=rho, steps=25, runs=2)
    w, total = problem.start.clone(), 0.0
    for _ in range(25):
        g = problem.gradient(w[None])[0]
        total += float(g @ g)
        w = w - eta * problem.gradient((w + rho * g)[None])[0]
    assert result.left == pytest.approx(total / 25)


@pytest.mark.parametrize("problem", [Quadratic.draw(30, 4), logistic()], ids=["quadratic", "logistic"])
@pytest.mark.parametrize("alpha", [0.25, 1.0])
def test_the_corrected_bound_holds(problem, alpha):
    assert theorem3(
        problem, alpha=alpha, batch=16, eta=1 / problem.tau, rho=0.25 / problem.tau, steps=200
    ).corrected_holds


def test_counterexample_against_every_path():
    """The exact moments of twelve steps against the mean over all 4096 sequences of draws."""
    h, a, best = (1.0, 0.5), (1.0, -1.0), 1 / 3
    eta, rho, steps = 0.3, 0.25, 12
    lefts = []
    for path in itertools.product((0, 1), repeat=steps):
        w, total = best, 0.0
        for i in path:
            assert -1 <= w <= 1
            assert ((h[0] * (w - a[0]) - h[1] * (w - a[1])) / 2) ** 2 <= 1  # sigma^2
            total += ((h[0] * (w - a[0]) + h[1] * (w - a[1])) / 2) ** 2
            w -= eta * h[i] * (w + rho * h[i] * (w - a[i]) - a[i])
        lefts.append(total / steps)
    assert counterexample(eta=eta, rho=rho, steps=steps).left == pytest.approx(np.mean(lefts))
    result = counterexample()
    assert not result.holds
    assert result.left > 5 * result.bounds.paper
    assert result.corrected_holds


# -- theorem 4: the bias of the selection, exactly -------------------------------------------------------------------


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


def scores_of(n, decay):
    scores = Scores(n, decay)
    scores.record(torch.arange(n), torch.linspace(0.1, 2, n) ** 2)
    return scores


@pytest.mark.parametrize("policy", [AUSampling(alpha=0.4, ramp=0), Random(0.4), TopLoss(0.4)])
def test_exact_expectations_against_draws(policy):
    n, draws = 12, 40_000
    scores = scores_of(n, policy.decay)
    result = expected_selection(policy, scores, 5, torch.arange(n))
    kept, _ = policy.choose(scores, 5, torch.arange(n).expand(draws, n), torch.Generator().manual_seed(3))
    drawn = np.bincount(kept.flatten().numpy(), minlength=n) / draws
    np.testing.assert_allclose(result.inclusion, drawn, atol=4 * 0.5 / draws**0.5)


def test_theorem4_fails_if_what_is_left_out_has_no_gradient(linear):
    model, losses, x, _ = linear
    y = (x @ model.weight[0]).detach()
    y[:6] += 1.0  # six samples have all the gradient, and are kept
    scores = Scores(12, 0.0)
    scores.record(torch.arange(12), losses(x, y).detach())
    result = theorem4(model, losses, (x, y), TopLoss(0.5), scores, 1, index=torch.arange(12), rho=0.1)
    assert result.relative == pytest.approx(1.0)  # the kept half's mean is twice that of all
    assert not result.paper_holds
    assert result.corrected_holds
