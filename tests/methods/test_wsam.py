"""WSAM against a slow transcription of both forms and against another library, step by step."""

from __future__ import annotations

import pytest
import torch

from ausam import RST, SAM, WSAM, Plain, SharpnessAware
from tests.helpers import losses_of
from tests.methods.slow import (
    DECAY,
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
    sgd,
)

RHO, GAMMA = 0.3, 0.8
ALPHA = GAMMA / (1 - GAMMA)


def decoupled_path(steps, micro=1, clip=None):
    """SGD with momentum and weight decay steps with g, then the weights move by lr * alpha * (g_s - g)."""
    w = [p.detach().clone() for p in network(batchnorm=False).parameters()]
    v, path = None, []
    for step in range(steps):
        g = d = [torch.zeros_like(t) for t in w]
        for part in range(micro):
            x, y = batch(micro * step + part)
            one = grad_at(w, x, y)
            perturbed = grad_at(plus(w, one, RHO / length(one)), x, y)
            g, d = plus(g, one), plus(d, plus(perturbed, one, -1.0))
        shorter = 1.0 if clip is None else min(1.0, clip / length(g))
        g, d = ([shorter * t for t in u] for u in (g, d))
        decayed = plus(g, w, DECAY)
        v = decayed if v is None else plus(decayed, v, MOMENTUM)
        w = plus(plus(w, v, -LR), d, -LR * ALPHA)
        path.append(w)
    return path


class Path:
    """The library's, with a hand in between: ``prepare(opt, model)`` runs between backward and step."""

    def __init__(self, method=None):
        self.model = network(batchnorm=False)
        self.opt = SharpnessAware(sgd(self.model), method or WSAM(RHO, GAMMA), self.model)

    def run(self, steps, micro=1, prepare=lambda opt, model: None, start=0, **how):
        path = []
        for step in range(start, start + steps):
            for part in range(micro):
                self.opt.backward(losses_of(self.model), *batch(micro * step + part), **how)
            prepare(self.opt, self.model)
            self.opt.step()
            self.model.zero_grad()
            path.append([p.detach().clone() for p in self.model.parameters()])
        return path


def test_the_decoupled_form_equals_its_transcription():
    assert_path(Path().run(8), decoupled_path(8))
    assert not identical(Path().run(8), Path(WSAM(RHO, GAMMA, decouple=False)).run(8))


def test_groups_have_their_own_learning_rate():
    model = network(batchnorm=False)
    first, *others = model.parameters()
    before = [p.detach().clone() for p in model.parameters()]
    base = torch.optim.SGD([{"params": [first], "lr": 0.0}, {"params": others}], lr=LR)
    opt = SharpnessAware(base, WSAM(RHO, GAMMA), model)
    opt.backward(losses_of(model), *batch(0))
    opt.step()
    g = grad_at(before, *batch(0))
    d = plus(grad_at(plus(before, g, RHO / length(g)), *batch(0)), g, -1.0)
    assert torch.equal(first, before[0])
    for p, w, a, b in zip(others, before[1:], g[1:], d[1:], strict=True):
        torch.testing.assert_close(p.detach(), w - LR * (a + ALPHA * b), rtol=0, atol=1e-9)


def test_clipping_shortens_both():
    def clip(opt, model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    path = Path().run(5, micro=2, prepare=clip)
    assert_path(path, decoupled_path(5, micro=2, clip=0.1), tol=1e-6)  # torch adds 1e-6 to the length
    assert not identical(path, Path().run(5, micro=2))


def test_unscaling_shortens_both():
    """What a GradScaler does: a scaled backward, and .grad divided by the scale before the step."""

    def unscale(opt, model):
        for p in model.parameters():
            p.grad /= 1024

    def scaled(loss):
        (1024 * loss).backward()

    assert_path(Path().run(5, micro=2, prepare=unscale, backward=scaled), decoupled_path(5, micro=2))


def test_a_gradient_that_is_cleared_takes_it_along():
    """By the model's zero_grad, of which the optimizer hears nothing."""
    path = Path()
    path.opt.backward(losses_of(path.model), *batch(7))
    path.model.zero_grad()
    assert_path(path.run(4), decoupled_path(4))
    path = Path()
    path.opt.backward(losses_of(path.model), *batch(7))
    path.model.zero_grad(set_to_none=False)
    assert_path(path.run(4), decoupled_path(4))


def test_a_closure_takes_the_same_steps():
    model = network(batchnorm=False)
    opt = SharpnessAware(sgd(model), WSAM(RHO, GAMMA), model)
    for step in range(4):

        def closure(step=step):
            opt.zero_grad()
            loss = losses_of(model)(*batch(step)).mean()
            loss.backward()
            return loss

        opt.step(closure)
    assert_path([[p.detach() for p in model.parameters()]], decoupled_path(4)[-1:])


def test_works_inside_another_method():
    assert_path(Path(RST(WSAM(RHO, GAMMA), p=1.0)).run(5), decoupled_path(5))


@pytest.mark.parametrize("decouple", [True, False])
def test_the_ends_of_gamma(decouple):
    """Coupled, one half is SAM; 0 is the base optimizer in both forms, but for the last digits."""
    assert_path(ours(WSAM(0.3, 0.0, decouple=decouple), 6), ours(Plain(), 6))
    assert_path(ours(WSAM(0.3, 0.5, decouple=False), 6), ours(SAM(0.3), 6))
