"""RST against a slow transcription of its formula, and the fairness of its coin."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ausam import ESAM, RST, SAM, Plain, SharpnessAware
from ausam.common.random import generator
from tests.helpers import Closed, few_of, few_or_many, refused, with_logits
from tests.methods.slow import apply, assert_same, batches, network, sgd, slow_gradient, slow_sam


def slow_coin(seed, step):
    return float(torch.rand((), generator=generator(seed, step, 1)))


def slow_probability(schedule, p, t, total):
    if schedule == "constant":
        return p
    if schedule == "piecewise":
        return 0.0 if t < (1 - p) * total else 1.0
    low, high = (0.0, 2 * p) if p <= 0.5 else (2 * p - 1, 1.0)
    if schedule == "linear":
        return low + (high - low) * t / total
    return low + (high - low) * (1 - math.cos(math.pi * t / total)) / 2


@pytest.mark.parametrize("gamma", [1.0, 2.0, 0.3])
@pytest.mark.parametrize("schedule", ["constant", "piecewise", "linear", "trigonometric"])
def test_follows_the_formula(schedule, gamma):
    p, rho, total, seed = 0.75, 0.2, 16, 5
    model, twin = network(), network()
    method = RST(SAM(rho), p, schedule, gamma, None if schedule == "constant" else total)
    opt, base = SharpnessAware(sgd(model), method, model, seed=seed), sgd(twin)
    drawn = 0
    for step, (x, y) in enumerate(batches(total)):
        feedback = opt.backward(with_logits(model), x, y)
        opt.step()
        opt.zero_grad()
        g = slow_gradient(twin, x, y)
        sharp = slow_coin(seed, step) < slow_probability(schedule, p, step, total)
        if sharp:
            g = [(1 - gamma) * a + gamma * b for a, b in zip(g, slow_sam(twin, x, y, g, rho), strict=True)]
        apply(base, g)
        assert_same(model, twin)
        assert bool(feedback.perturbed.isfinite().all()) == sharp
        assert bool(feedback.perturbed.isnan().all()) != sharp
        drawn += sharp
    assert 0 < drawn < total
    assert opt.samples_forward == opt.samples_backward == 9 * (total + drawn)  # never a third pass


def coins(method, steps, micro=1, seed=0):
    """Whether each step (each micro-batch of it) evaluated the perturbed loss."""
    model = nn.Linear(1, 2)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=1e-3), method, model, seed=seed)
    fallen = []
    for _ in range(steps):
        feedbacks = [opt.backward(with_logits(model), torch.ones(1, 1), torch.tensor([0])) for _ in range(micro)]
        opt.step()
        opt.zero_grad()
        fallen.append([bool(f.perturbed.isfinite().all()) for f in feedbacks])
    return torch.tensor(fallen)


@pytest.mark.parametrize("steps", few_or_many(200, 600))
def test_draws_as_often_as_it_says_and_alike_in_all_micro_batches(steps):
    fallen = coins(RST(p=0.3), steps, micro=2)
    assert torch.equal(fallen[:, 0], fallen[:, 1])
    share = float(fallen[:, 0].float().mean())
    assert abs(share - 0.3) < 3 * (0.3 * 0.7 / steps) ** 0.5
    assert not torch.equal(fallen[:60], coins(RST(p=0.3), 60, micro=2, seed=1))
    assert not coins(RST(p=0.0), 50).any()
    assert coins(RST(p=1.0), 50).all()


@pytest.mark.parametrize("p", few_of([0.25, 0.5, 0.8], 0.5))
@pytest.mark.parametrize("schedule", ["piecewise", "linear", "trigonometric"])
def test_schedules_rise_and_cost_what_passes_says(schedule, p):
    total = 400
    fallen = coins(RST(p=p, schedule=schedule, total_steps=total), total)[:, 0].float()
    forward, backward = RST(p=p, schedule=schedule, total_steps=total).passes
    assert forward == backward == 1 + p
    assert abs(float(fallen.mean()) - p) < 0.075  # three standard deviations
    assert float(fallen[:100].mean()) < float(fallen[-100:].mean())


def test_coin_is_independent_of_what_the_inner_method_draws():
    """ESAM draws its tensors from the same (seed, step): with the coin's own number it would never choose freely."""
    model = nn.Linear(1, 2)
    seen = []

    class Spy(ESAM):
        def gradient(self, step):
            seen.append(float(torch.rand((), generator=step.rng())))
            return super().gradient(step)

    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=1e-3), RST(Spy(), p=0.3), model)
    for _ in range(300):
        opt.backward(with_logits(model), torch.ones(2, 1), torch.tensor([0, 1]))
        opt.step()
        opt.zero_grad()
    assert len(seen) > 50
    assert sum(s > 0.3 for s in seen) > 0.5 * len(seen)


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (lambda: RST(schedule="linear"), ("total_steps is None", "linear", "total_steps=epochs * len(loader)")),
        (lambda: RST(SAM), ("inner is SAM", "an instance", "SAM(rho=0.05)")),
        (lambda: RST(Plain()), ("inner is Plain", "never evaluates the loss at perturbed weights", "Use SAM()")),
        (lambda: RST(Closed(), gamma=2.0), ("inner is ", "Closed", "second(step, g)", "Use ASAM()")),
    ],
)
def test_settings_are_refused(build, parts):
    with refused(ValueError, "RST: ", *parts):
        build()
