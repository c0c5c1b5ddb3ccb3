"""MomentumSAM against a slow transcription of its formula with SGD and Adam, and where it moves to."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ausam import MomentumSAM, SharpnessAware
from tests.helpers import refused, with_logits
from tests.methods.slow import GUARD, D, assert_same, batches, length, network, sgd, slow_moved


def test_with_sgd_follows_the_formula():
    rho, lr, mu, decay = 0.7, 0.2, 0.9, 1e-2
    model, twin = network(), network()
    opt = SharpnessAware(sgd(model), MomentumSAM(rho), model)
    v = None
    for x, y in batches(6):
        opt.backward(with_logits(model), x, y)
        opt.step()
        opt.zero_grad()
        e = (
            [torch.zeros_like(p) for p in twin.parameters()]
            if v is None
            else [-rho * t / (length(v) + GUARD) for t in v]
        )
        statistics = slow_statistics_at(twin, x, e)
        g = slow_moved(twin, x, y, e)
        with torch.no_grad():
            g = [a + decay * p for a, p in zip(g, twin.parameters(), strict=True)]
            v = g if v is None else [mu * a + b for a, b in zip(v, g, strict=True)]
            for p, t in zip(twin.parameters(), v, strict=True):
                p -= lr * t
        twin.load_state_dict(statistics, strict=False)
        assert_same(model, twin)


def test_with_adam_follows_the_formula():
    rho, lr, b1, b2, eps = 0.7, 0.05, 0.9, 0.99, 1e-8
    model, twin = network(batchnorm=False), network(batchnorm=False)
    opt = SharpnessAware(torch.optim.Adam(model.parameters(), lr=lr, betas=(b1, b2), eps=eps), MomentumSAM(rho), model)
    m = [torch.zeros_like(p) for p in twin.parameters()]
    s = [torch.zeros_like(p) for p in twin.parameters()]
    for t, (x, y) in enumerate(batches(6), start=1):
        opt.backward(with_logits(model), x, y)
        opt.step()
        opt.zero_grad()
        g = slow_moved(twin, x, y, [-rho * a / (length(m) + GUARD) for a in m])
        m = [b1 * a + (1 - b1) * b for a, b in zip(m, g, strict=True)]
        s = [b2 * a + (1 - b2) * b**2 for a, b in zip(s, g, strict=True)]
        with torch.no_grad():
            for p, a, b in zip(twin.parameters(), m, s, strict=True):
                p -= lr * (a / (1 - b1**t)) / ((b / (1 - b2**t)).sqrt() + eps)
        assert_same(model, twin)


def test_moves_against_the_momentum_and_calls_its_only_loss_the_loss():
    """f(w) = w^2 / 2 at w = 1 with v = 1: the gradient of the second step is 1 - lr - rho, not 1 - lr + rho."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), MomentumSAM(0.3), model)

    def losses(x):
        return (model(x) ** 2 / 2).squeeze(1)

    first = opt.backward(losses, torch.ones(1, 1, dtype=D))
    assert model.weight.grad.item() == pytest.approx(1.0)
    opt.step()
    opt.zero_grad()
    second = opt.backward(losses, torch.ones(1, 1, dtype=D))
    assert model.weight.grad.item() == pytest.approx(0.9 - 0.3)
    assert model.weight.item() == pytest.approx(0.9)
    assert float(first.loss) == pytest.approx(0.5)
    assert float(second.loss) == pytest.approx(0.18)
    assert bool(second.perturbed.isnan().all())


def test_says_so_when_there_is_no_momentum():
    model = network()
    opt = SharpnessAware(sgd(model, momentum=0.0), MomentumSAM(), model)
    (x, y), *_ = batches(1)
    opt.backward(with_logits(model), x, y)
    opt.step()
    with refused(RuntimeError, "no momentum", "Use SGD(..., momentum=0.9), Adam or AdamW."):
        opt.backward(with_logits(model), x, y)


def slow_statistics_at(twin, x, e):
    """The buffers after a training-mode forward at w + e: the only pass of the step, so it moves them."""
    moved = copy.deepcopy(twin)
    with torch.no_grad():
        for p, t in zip(moved.parameters(), e, strict=True):
            p += t
        moved(x)
    return dict(moved.named_buffers())
