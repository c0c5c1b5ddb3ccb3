"""Theorem 3: the known constants, the algorithm against a literal run, and the counterexample."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from research.theory.theorem3 import LogisticRegression, Quadratic, bounds, counterexample, theorem3


def logistic(n=40, d=3):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=rng).double()
    return LogisticRegression(x, torch.where(torch.rand(n, generator=rng) < 0.5, -1.0, 1.0).double(), l2=0.01)


PROBLEMS = {"quadratic": Quadratic.draw(30, 4), "logistic": logistic()}


def sample_loss(problem, w, i):
    if isinstance(problem, Quadratic):
        return 0.5 * (problem.curvature * (w - problem.centres[i]) ** 2).sum()
    return torch.log1p(torch.exp(-problem.y[i] * (problem.x[i] @ w))) + problem.l2 / 2 * (w @ w)


@pytest.mark.parametrize("name", PROBLEMS)
def test_loss_and_gradients_against_autograd(name):
    problem = PROBLEMS[name]
    w = torch.randn(len(problem.start), generator=torch.Generator().manual_seed(1)).double().requires_grad_()
    each = [torch.autograd.grad(sample_loss(problem, w, i), w)[0] for i in range(problem.samples)]
    rows = problem.gradients(w[None].detach(), torch.arange(problem.samples)[None])[0]
    torch.testing.assert_close(rows, torch.stack(each))
    torch.testing.assert_close(problem.gradient(w[None].detach())[0], torch.stack(each).mean(0))
    mean = torch.stack([sample_loss(problem, w, i) for i in range(problem.samples)]).mean()
    torch.testing.assert_close(problem.loss(w[None].detach())[0], mean.detach())


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_constants_are_bounds(name):
    problem = PROBLEMS[name]
    rng = torch.Generator().manual_seed(2)
    for scale in (0.1, 1.0, 10.0):
        w = scale * torch.randn(len(problem.start), generator=rng).double()
        rows = problem.gradients(w[None], torch.arange(problem.samples)[None])[0]
        assert (rows - rows.mean(0)).square().sum(1).mean() <= problem.variance * (1 + 1e-9)
        for i in range(0, problem.samples, 7):
            hessian = torch.autograd.functional.hessian(lambda v, i=i: sample_loss(problem, v, i), w)
            assert torch.linalg.eigvalsh(hessian).max() <= problem.tau * (1 + 1e-9)


def test_the_run_is_the_algorithm_of_the_proof():
    # With alpha = 1 and the whole data in a batch nothing is random: every run is plain descent.
    problem = PROBLEMS["logistic"]
    eta, rho = 0.3 / problem.tau, 0.2 / problem.tau
    result = theorem3(problem, alpha=1.0, batch=40, eta=eta, rho=rho, steps=25, runs=2)
    w, total = problem.start.clone(), 0.0
    first = problem.loss(w[None])
    for _ in range(25):
        g = problem.gradient(w[None])[0]
        total += float(g @ g)
        w = w - eta * problem.gradient((w + rho * g)[None])[0]
    assert result.left == pytest.approx(total / 25)
    assert result.left_error == pytest.approx(0.0, abs=1e-12)
    decrease = float(first - problem.loss(w[None]))
    t, r = problem.tau * eta, problem.tau * rho
    c = t / 2 * (1 - 2 * r * r) + (1 - t) * (0.5 - r)
    noise = problem.tau * problem.variance / 40
    assert result.bounds.paper == pytest.approx(16 * decrease / (7 * eta * 25) + 17 * eta * noise / 7)
    corrected = (
        decrease / (eta * 25 * c)
        + (2 * eta**2 * (1 + r * r) + eta * (1 - t) * rho**2 * problem.tau) / (eta * c) * noise / 2
    )
    assert result.bounds.corrected == pytest.approx(corrected)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("alpha", [0.25, 1.0])
@pytest.mark.parametrize("step", [0.1, 1.0])
def test_the_corrected_bound_holds(name, alpha, step):
    problem = PROBLEMS[name]
    result = theorem3(problem, alpha=alpha, batch=16, eta=step / problem.tau, rho=0.25 / problem.tau, steps=200)
    assert result.corrected_holds
    assert result.looseness > 1
    assert result.kept == 16 * alpha


@given(st.floats(1e-4, 1.0), st.floats(1e-3, 0.25))
def test_when_the_papers_form_follows(t, r):
    result = bounds(decrease=1.0, eta=t, rho=r, steps=10, tau=1.0, variance=3.0, kept=2)
    if result.proved:
        assert result.corrected <= result.paper * (1 + 1e-9)
    if t == 1.0:
        assert result.c >= 7 / 16


def test_the_papers_constants_are_those_of_the_largest_step():
    result = bounds(decrease=1.0, eta=1.0, rho=0.25, steps=10, tau=1.0, variance=3.0, kept=2)
    assert result.c == pytest.approx(7 / 16)
    assert result.corrected == pytest.approx(result.paper)
    assert result.proved


def test_counterexample_against_every_path():
    """The exact moments of twelve steps against the mean over all 4096 sequences of draws."""
    h, a, best = (1.0, 0.5), (1.0, -1.0), 1 / 3
    eta, rho, steps = 0.3, 0.25, 12
    lefts, ends = [], []
    for path in itertools.product((0, 1), repeat=steps):
        w, total = best, 0.0
        for i in path:
            assert -1 <= w <= 1
            assert ((h[0] * (w - a[0]) - h[1] * (w - a[1])) / 2) ** 2 <= 1  # sigma^2
            total += ((h[0] * (w - a[0]) + h[1] * (w - a[1])) / 2) ** 2
            g = h[i] * (w - a[i])
            w -= eta * h[i] * (w + rho * g - a[i])
        lefts.append(total / steps)
        ends.append(sum(hi * (w - ai) ** 2 / 2 for hi, ai in zip(h, a, strict=True)) / 2)
    result = counterexample(eta=eta, rho=rho, steps=steps)
    start = sum(hi * (best - ai) ** 2 / 2 for hi, ai in zip(h, a, strict=True)) / 2
    assert result.left == pytest.approx(np.mean(lefts))
    assert result.decrease == pytest.approx(start - np.mean(ends))


def test_counterexample():
    result = counterexample()
    assert not result.holds
    assert result.left > 5 * result.bounds.paper
    assert result.corrected_holds
    assert counterexample(eta=0.1, steps=2000).holds  # a large step hides it
