"""LookSAM against a slow transcription of its formula, step by step, and its first step after a loss of memory."""

from __future__ import annotations

import copy

import pytest
import torch

from ausam import LookSAM, Plain, SharpnessAware
from tests.helpers import losses_of
from tests.methods.slow import (
    LR,
    batch,
    length,
    network,
    plus,
    sam_rule,
)


def test_differs_from_sgd_between_sam_steps():
    look, sgd = LookSAM(0.3, 5), Plain()
    models = [network(batchnorm=False), network(batchnorm=False)]
    grads = []
    for model, method in zip(models, (look, sgd), strict=True):
        opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.0), method, model)
        for step in range(2):
            opt.zero_grad()
            opt.backward(losses_of(model), *batch(step))
            opt.step()
        grads.append([p.grad for p in model.parameters()])
    bent, g = grads
    extra = plus(bent, g, -1)
    assert length(extra) == pytest.approx(0.7 * length(g))


def test_resumed_without_its_vector_begins_with_a_sam_step():
    model = network(batchnorm=False)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=LR), LookSAM(0.3, 5), model)
    fn = losses_of(model)
    for step in range(2):
        opt.backward(fn, *batch(step))
        opt.step()
        opt.zero_grad()
    saved = copy.deepcopy(opt.state_dict())
    saved["ausam"]["memory"]["values"] = {}
    opt.load_state_dict(saved)
    assert opt.steps == 2
    w = [p.detach().clone() for p in model.parameters()]
    feedback = opt.backward(fn, *batch(2))
    assert feedback.perturbed.isfinite().all()
    for p, t in zip(model.parameters(), sam_rule(0.3)(w, *batch(2), 2), strict=True):
        torch.testing.assert_close(p.grad, t, rtol=0, atol=1e-12)
    opt.step()
    assert opt.backward(fn, *batch(3)).perturbed.isnan().all()
