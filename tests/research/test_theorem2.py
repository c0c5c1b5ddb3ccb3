"""Theorem 2: deviations and bounds by hand, on runs whose constants are known."""

import math

import numpy as np
import pytest
import torch
from research.theory.theorem2 import theorem2
from torch import nn


def descent(rates):
    """Gradient descent on mean_i (w - a_i)^2 h_i / 2 in one dimension: the weights before each epoch."""
    h, a = torch.tensor([1.0, 0.5, 2.0]).double(), torch.tensor([1.0, -1.0, 0.0]).double()
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 3.0)

    def losses(h, a):
        return h * (model(torch.ones(len(h), 1).double())[:, 0] - a).square() / 2

    path, largest = [], 0.0
    w = 3.0
    for eta in (*rates, 0.0):
        path.append(w)
        g = float((h * (w - a)).mean())
        largest = max(largest, abs(g))
        w -= eta * g
    states = [{"weight": torch.tensor([[v]]).double()} for v in path]
    return model, losses, h, a, states, np.array(path), largest


def test_by_hand():
    rates = [0.4 / t**2 for t in range(1, 6)]
    model, losses, h, a, states, w, largest = descent(rates)
    result = theorem2(model, losses, [(h, a)], states, rates, iterations=1, gradient_bound=largest)
    norms = np.abs(h.numpy() * (w[:, None] - a.numpy()))
    for j, t in enumerate(result.epochs):
        gap = np.abs(norms[t - 1] - norms[: t - 1].mean(0))
        assert result.largest[j] == pytest.approx(gap.max())
        assert result.mean[j] == pytest.approx(gap.mean())
        assert result.relative[j] == pytest.approx(gap.mean() / norms[t - 1].mean())
        double_sum = sum(rates[i - 1] for s in range(1, t) for i in range(s, t))  # every step after each s < t
        assert result.schedule_bound[j] == pytest.approx(result.tau * largest * double_sum / (t - 1))
        assert result.path_bound[j] == pytest.approx(result.tau * np.abs(w[t - 1] - w[: t - 1]).mean())
    assert result.tau == pytest.approx(2.0)  # the largest curvature of a sample
    assert result.paper == pytest.approx(2.0 * 0.4 * math.pi**2 * largest / 6)
    assert result.applies
    assert result.holds
    assert result.schedule_holds


def test_the_schedule_bound_of_the_theorem_vanishes_and_that_of_a_cosine_grows():
    square = [0.4 / t**2 for t in range(1, 40)]
    cosine = [0.2 * (1 + math.cos(math.pi * t / 40)) for t in range(39)]
    bounds = {}
    for name, rates in (("square", square), ("cosine", cosine)):
        model, losses, h, a, states, _, largest = descent(rates)
        result = theorem2(model, losses, [(h, a)], states, rates, iterations=1, gradient_bound=largest)
        bounds[name] = result.schedule_bound
        assert result.applies == (name == "square")
        assert (result.holds is None) == (name == "cosine")
    harmonic = sum(1 / j for j in range(1, 40)) / 39
    assert bounds["square"][-1] == pytest.approx(bounds["square"][0] * harmonic)
    assert bounds["square"][-1] < bounds["square"][0] / 5
    assert bounds["cosine"][-1] > 4 * bounds["cosine"][0]
