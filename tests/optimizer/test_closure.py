"""torch's closure protocol: what was in .grad before, what a closure may return, and hooks."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from ausam import ASAM, SAM, FriendlySAM, LookSAM, Plain, SharpnessAware
from tests.helpers import assert_equal, data, losses_of, network, optimizer, refused, values, weights
from tests.optimizer.parts import BASES, Branches

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


WAYS = {
    "optimizer": lambda model, opt: opt.zero_grad(),
    "model, zeros": lambda model, opt: model.zero_grad(set_to_none=False),
    "by hand": lambda model, opt: [p.grad.zero_() for p in model.parameters() if p.grad is not None],
    "not at all": lambda model, opt: None,
}


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_step_replaces_what_was_in_grad_and_accumulate_adds_to_it(way, adds):
    """Whether or not the closure clears the gradients."""
    model = network(batchnorm=False, dtype=torch.float64)
    opt = optimizer(model, SAM(0.2), momentum=0.0)
    w = weights(model)

    def closure():
        WAYS[way](model, opt)
        loss = F.cross_entropy(model(X[4:]), Y[4:]) / 2
        loss.backward()
        return loss

    (F.cross_entropy(model(X[:4]), Y[:4]) / 2).backward()
    first = torch.cat([p.grad.flatten() for p in model.parameters()])
    if adds:
        opt.accumulate(closure)
        opt.step()
    else:
        opt.step(closure)

    twin = network(batchnorm=False, dtype=torch.float64)
    g = torch.autograd.grad(F.cross_entropy(twin(X[4:]), Y[4:]) / 2, list(twin.parameters()))
    g = torch.cat([t.flatten() for t in g])
    nn.utils.vector_to_parameters(w + 0.2 * g / g.norm(), twin.parameters())
    sharp = torch.autograd.grad(F.cross_entropy(twin(X[4:]), Y[4:]) / 2, list(twin.parameters()))
    total = torch.cat([t.flatten() for t in sharp]) + (first if adds else 0.0)
    torch.testing.assert_close(weights(model), w - 0.1 * total, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1024.0])
@pytest.mark.parametrize("method", [SAM(rho=0.1), FriendlySAM(rho=0.1), LookSAM(rho=0.1, k=2)])
def test_closures_that_are_accumulated_equal_backward(method, scale):
    """Also under a loss scale, which a method with a memory must know of: a power of two changes no bit."""
    x, y = data(n=12)
    a, b = network(batchnorm=False), network(batchnorm=False)
    by_rows, by_closure = optimizer(a, method), optimizer(b, method)
    for _ in range(4):
        by_rows.zero_grad()
        by_closure.zero_grad()
        for part in (slice(0, 6), slice(6, 12)):
            by_rows.backward(losses_of(a), x[part], y[part], backward=lambda loss: (loss / 2 * scale).backward())

            def closure(part=part):
                loss = F.cross_entropy(b(x[part]), y[part]) / 2
                (loss * scale).backward()
                return loss

            before = [p.detach().clone() for p in b.parameters()]
            value, expected = by_closure.accumulate(closure, scale=scale / 2), F.cross_entropy(b(x[part]), y[part]) / 2
            assert torch.equal(value, expected)  # the first value
            assert all(map(torch.equal, before, b.parameters()))  # no step was taken
        for opt in (by_rows, by_closure):
            for p in opt.param_groups[0]["params"]:
                p.grad /= scale
            opt.step()
        assert all(map(torch.equal, a.parameters(), b.parameters()))
    assert by_closure.steps == by_rows.steps == 4


@pytest.mark.parametrize("shape", [dict, tuple, list, float, None], ids=str)
def test_a_closure_may_return_what_it_likes(shape):
    model = network(batchnorm=False, dtype=torch.float64)
    opt = optimizer(model, SAM(0.2), momentum=0.0)

    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        if shape is dict:
            return {"main": loss, "extra": loss.detach() * 0}
        if shape in (tuple, list):
            return shape((loss, loss.detach() * 0))
        return loss.item() if shape is float else None

    before = weights(model)
    value = opt.step(closure)
    assert not torch.equal(weights(model), before)
    assert value is None if shape is None else isinstance(value, shape)


def test_a_part_that_is_not_finite_skips_the_step():
    model = network(batchnorm=False, dtype=torch.float64)
    opt = optimizer(model, SAM(0.2), momentum=0.0)

    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return {"main": loss, "extra": torch.tensor(float("nan"))}

    before = weights(model)
    with pytest.warns(RuntimeWarning, match="not finite"):
        opt.step(closure)
    assert torch.equal(weights(model), before)
    assert opt.skipped == 1


def test_a_step_that_bypasses_the_method_warns_once():
    model = network(batchnorm=False, dtype=torch.float64)
    opt = optimizer(model, SAM(0.2), momentum=0.0)
    F.cross_entropy(model(X), Y).backward()
    with pytest.warns(RuntimeWarning, match=r"gradients that SAM did not compute.*opt\.backward\(loss_fn") as caught:
        opt.step()
    assert caught[0].filename == __file__
    opt.zero_grad()
    F.cross_entropy(model(X), Y).backward()
    opt.step()  # warnings are errors here: it is said once
    opt.zero_grad()
    opt.step()  # nothing to bypass


@pytest.mark.parametrize(
    ("method", "runs"), [(Plain(), 1), (SAM(0.1), 2), (ASAM(0.5), 2)], ids=["plain", "sam", "asam"]
)
@pytest.mark.parametrize("to_none", [True, False])
def test_closure_equals_backward_and_step(method, runs, to_none):
    ours, theirs = network(), network()
    a = SharpnessAware(BASES["sgd"](ours.parameters()), method, ours)
    b = SharpnessAware(BASES["sgd"](theirs.parameters()), method, theirs)
    calls = 0
    for step in range(3):
        x, y = data(step)
        with torch.no_grad():
            clean = F.cross_entropy(copy.deepcopy(theirs)(x), y)
        feedback = a.backward(losses_of(ours), x, y)
        a.step()
        a.zero_grad()

        def closure(x=x, y=y):
            nonlocal calls
            calls += 1
            b.zero_grad(set_to_none=to_none)
            loss = F.cross_entropy(theirs(x), y)
            loss.backward()
            return loss

        with torch.no_grad():  # as frameworks call it
            loss = b.step(closure)
        torch.testing.assert_close(loss.detach(), clean, rtol=0, atol=0)
        torch.testing.assert_close(loss.detach(), feedback.loss.mean())
        torch.testing.assert_close(dict(theirs.named_parameters()), dict(ours.named_parameters()))
        assert int(theirs[1].num_batches_tracked) == step + 1
        torch.testing.assert_close(theirs[1].running_var, ours[1].running_var)
    assert calls == 3 * runs
    assert b.steps == 3


def test_a_closure_of_an_unused_parameter_leaves_grad_none():
    model = Branches()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1, weight_decay=0.1), SAM(0.1), model)
    x, y = data()

    def closure():
        opt.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    before = values(model)
    for _ in range(2):
        opt.step(closure)
    assert all(p.grad is None for p in model.unused.parameters())
    assert torch.equal(model.unused.weight, before["unused.weight"])


def test_methods_that_need_rows_refuse_a_closure():
    @dataclass(frozen=True)
    class Looks:
        sharpness: ClassVar[str] = "never"

        def gradient(self, step):
            return step.backward(step.forward())

    @dataclass(frozen=True)
    class Rows:
        sharpness: ClassVar[str] = "never"

        def gradient(self, step):
            return step.gradient(torch.tensor([0]))

    model = network()
    before = values(model)
    for method in (Looks(), Rows()):
        opt = SharpnessAware(SGD(model.parameters(), lr=0.1), method, model)
        with refused(RuntimeError, "needs per-sample losses", "Call opt.backward(loss_fn, *batch)"):
            opt.step(lambda: torch.zeros(()))
    assert_equal(values(model), before)


@pytest.mark.parametrize("reached", [True, False])
def test_a_closure_that_clears_our_gradients_keeps_those_of_another_optimizer(reached):
    gradients = []
    for ours in (True, False):
        torch.manual_seed(0)
        model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 3)}).double()
        base = SGD(model["b"].parameters(), lr=0.1)
        opt = SharpnessAware(base, Plain(), model) if ours else base
        model["a"](X).sum().backward()

        def closure(model=model, opt=opt):
            opt.zero_grad()
            loss = F.cross_entropy(model["b"](model["a"](X) if reached else X), Y)
            loss.backward()
            return loss

        opt.step(closure)
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=0.0)
