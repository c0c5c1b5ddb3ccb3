"""LookSAM against a slow transcription of its formula, step by step, and its first step after a loss of memory."""

from __future__ import annotations

import copy

import pytest
import torch

from ausam import SAM, LookSAM, Plain, SharpnessAware
from tests.helpers import losses_of
from tests.methods.slow import (
    LR,
    assert_path,
    batch,
    grad_at,
    identical,
    inner,
    length,
    network,
    ours,
    plus,
    sam_rule,
    theirs,
)


def looksam_rule(rho, k, alpha):
    g_v = None

    def rule(w, x, y, step):
        nonlocal g_v
        g = grad_at(w, x, y)
        if step % k == 0:
            g_s = grad_at(plus(w, g, rho / length(g)), x, y)
            g_v = plus(g_s, g, -inner(g_s, g) / length(g) ** 2)
            return g_s
        return plus(g, g_v, alpha * length(g) / length(g_v))

    return rule


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        (LookSAM(0.3, 3, 0.7), lambda: looksam_rule(0.3, 3, 0.7)),
        (LookSAM(0.1, 1, 0.2), lambda: looksam_rule(0.1, 1, 0.2)),
    ],
    ids=lambda v: "" if callable(v) else str(v),
)
def test_equals_the_transcription(method, rule):
    assert_path(ours(method, 12), theirs(rule(), 12))


def test_every_step_is_sam_bit_for_bit():
    assert identical(ours(LookSAM(0.3, 1), 6), ours(SAM(0.3), 6))


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
