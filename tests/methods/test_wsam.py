"""WSAM against a slow transcription of its formula and against another library, step by step."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from ausam import SAM, WSAM, Plain, SharpnessAware
from tests.helpers import losses_of
from tests.methods.slow import (
    LR,
    MOMENTUM,
    assert_path,
    batch,
    grad_at,
    identical,
    length,
    network,
    ours,
    plus,
    theirs,
)


def wsam_rule(rho, gamma):
    def rule(w, x, y, step):
        g = grad_at(w, x, y)
        g_s = grad_at(plus(w, g, rho / length(g)), x, y)
        return plus(g, plus(g_s, g, -1.0), gamma / (1 - gamma))  # that of L + gamma / (1 - gamma) * sharpness

    return rule


@pytest.mark.parametrize(("rho", "gamma"), [(0.3, 0.9), (0.05, 0.8), (0.3, 0.2)])
def test_equals_the_transcription(rho, gamma):
    assert_path(ours(WSAM(rho, gamma), 12), theirs(wsam_rule(rho, gamma), 12))


def test_the_ends_of_gamma():
    """One half is SAM and 0 is the base optimizer, but for the last digits."""
    assert_path(ours(WSAM(0.3, 0.5), 6), ours(SAM(0.3), 6))
    assert_path(ours(WSAM(0.3, 0.0), 6), ours(Plain(), 6))


def peer(gamma, steps, **how):
    """The path of pytorch_optimizer's."""
    other = pytest.importorskip("pytorch_optimizer")
    model = network(batchnorm=False)
    opt = other.WSAM(model, model.parameters(), torch.optim.SGD, rho=0.3, gamma=gamma, lr=LR, **how)
    path = []
    for step in range(steps):
        x, y = batch(step)

        def closure(x=x, y=y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        opt.zero_grad()
        opt.step(closure)
        path.append([p.detach().clone() for p in model.parameters()])
    return path


@pytest.mark.parametrize("gamma", [0.2, 0.5, 0.9])
def test_equals_pytorch_optimizers_coupled_form(gamma):
    """It takes its norm in float32 and subtracts e instead of copying w back, hence the tolerance."""
    path = peer(gamma, 6, decouple=False, momentum=MOMENTUM)
    assert_path(ours(WSAM(0.3, gamma), 6), path, tol=1e-6)
    assert not identical(path, ours(Plain(), 6))


def test_the_decoupled_form_is_the_same_step_for_sgd_without_momentum():
    model = network(batchnorm=False)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=LR), WSAM(0.3, 0.9), model)
    for step, decoupled in enumerate(peer(0.9, 6, decouple=True)):
        opt.backward(losses_of(model), *batch(step))
        opt.step()
        opt.zero_grad()
        for p, q in zip(model.parameters(), decoupled, strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-6)
