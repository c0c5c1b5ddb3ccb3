"""PreviousGradientSAM against a slow transcription of its formula, and what it remembers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ausam import PreviousGradientSAM, SharpnessAware
from tests.helpers import losses_of
from tests.methods.slow import (
    EXACT,
    GUARD,
    D,
    assert_same,
    batch,
    grad_at,
    length,
    network,
    plus,
    sgd,
)


def test_climbs_along_the_last_gradient_and_calls_its_only_loss_the_loss():
    """f(w) = w^2 / 2 at w = 1, lr 0.1: the second gradient is 0.9 + rho, and the model is at 0.9 all the while."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), PreviousGradientSAM(0.3), model)
    for gradient, loss in ((1.0, 0.5), (0.9 + 0.3, 1.2**2 / 2)):
        feedback = opt.backward(lambda x: (model(x) ** 2 / 2).squeeze(1), torch.ones(1, 1, dtype=D))
        assert model.weight.grad.item() == pytest.approx(gradient)
        assert float(feedback.loss) == pytest.approx(loss)
        assert bool(feedback.perturbed.isnan().all())
        opt.step()
        opt.zero_grad()


def test_micro_batches_are_one_batch():
    """The sum of two halves has the direction of the whole, and all of them share one perturbation."""
    whole, halves = network(batchnorm=False), network(batchnorm=False)
    opts = [SharpnessAware(sgd(model), PreviousGradientSAM(0.4), model) for model in (whole, halves)]
    for step in range(5):
        x, y = batch(step)
        opts[0].backward(losses_of(whole), x, y)
        for rows in (slice(0, 4), slice(4, 8)):
            opts[1].backward(losses_of(halves), x[rows], y[rows])
        for p in halves.parameters():
            p.grad /= 2
        for opt in opts:
            opt.step()
            opt.zero_grad()
        assert_same(halves, whole)


def test_the_radius_of_a_parameter_group():
    """rho 0 in one group: its weights stay where they are, and the other group's move by its own part."""
    model = network(batchnorm=False)
    groups = [{"params": model[0].parameters(), "rho": 0.0}, {"params": model[2].parameters(), "rho": 0.4}]
    opt = SharpnessAware(torch.optim.SGD(groups, lr=0.1), PreviousGradientSAM(9.0), model)
    opt.backward(losses_of(model), *batch(0))
    g = [p.grad.clone() for p in model.parameters()]
    opt.step()
    opt.zero_grad()
    w = [p.detach().clone() for p in model.parameters()]
    e = [(0.0 if i < 2 else 0.4) * t / (length(g) + GUARD) for i, t in enumerate(g)]
    opt.backward(losses_of(model), *batch(1))
    for p, slow in zip(model.parameters(), grad_at(plus(w, e), *batch(1)), strict=True):
        torch.testing.assert_close(p.grad, slow, **EXACT)
