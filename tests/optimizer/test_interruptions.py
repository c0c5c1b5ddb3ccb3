"""An exception or a signal inside the optimizer changes everything or nothing: weights, buffers, .grad, modes."""

from __future__ import annotations

import copy
import sys
import threading
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from ausam import GSAM, MESA, SAF, SAM, FunctionalSAM, LookSAM, MomentumSAM, SharpnessAware
from ausam.common.tensors import ascent
from tests import signals
from tests.helpers import assert_equal, data, few_or_many, losses_of, network, refused, train, values
from tests.optimizer.parts import BASES, Counting, Remembering
from tests.signals import cut_off

METHODS = [SAM(0.1), MESA(start=0, decay=0.9), GSAM(0.1), LookSAM(0.1, k=2), MomentumSAM(0.1)]


# -- exceptions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad_pass", [1, 2])
@pytest.mark.filterwarnings("ignore:opt.backward adds")
def test_exceptions_leave_no_trace(bad_pass):
    model = nn.Sequential(Counting(), nn.BatchNorm1d(3))
    opt = SharpnessAware(BASES["sgd"](model.parameters()), Remembering(), model)
    before, ours = values(model), copy.deepcopy(opt.state_dict())
    grads = [torch.full_like(p, 0.5) if i % 2 else None for i, p in enumerate(model.parameters())]
    for p, g in zip(model.parameters(), grads, strict=True):
        p.grad = g
    calls = 0

    def loss_fn(x, y):
        nonlocal calls
        calls += 1
        losses = losses_of(model)(x, y)
        if calls == bad_pass:
            raise KeyError("the user's own")
        return losses

    with pytest.raises(KeyError, match="the user's own"):
        opt.backward(loss_fn, *data())
    assert calls == bad_pass
    assert_equal(values(model), before)
    assert model[0].state() == (0.0, [0.0, 0.0], None, [])
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
    assert all(g is None or bool((g == 0.5).all()) for g in grads)
    assert_equal(opt.state_dict(), ours)
    model.zero_grad()
    train(opt, model, 1)  # and it goes on
    assert opt.steps == 1
    assert model[0].state() == (1.0, [1.0, 1.0], 1.0, [1.0] * 3)


@pytest.mark.parametrize("bad_pass", [1, 2])
def test_exceptions_in_the_backward_leave_no_trace(bad_pass):
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model)
    before = values(model)
    calls = 0

    def backward(loss):
        nonlocal calls
        calls += 1
        loss.backward()
        if calls == bad_pass:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        opt.backward(losses_of(model), *data(), backward=backward)
    assert_equal(values(model), before)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("inner", ["backward", "step", "step(closure)"])
def test_a_call_inside_the_loss_function_is_refused_and_restored(inner):
    model = network()
    opt, losses = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model), losses_of(model)
    train(opt, model, 2)
    before = copy.deepcopy((model.state_dict(), opt.base.state_dict()))

    def nested(x, y):
        calls = {"backward": lambda: opt.backward(losses, x, y), "step": opt.step}
        calls.get(inner, lambda: opt.step(lambda: losses(x, y).mean()))()
        return losses(x, y)

    with refused(RuntimeError, "Let the loss function compute the losses only"):
        opt.backward(nested, *data())
    assert_equal((model.state_dict(), opt.base.state_dict()), before)
    train(opt, model, 1)  # and it goes on


def test_shifting_twice_is_refused_and_restored():
    @dataclass(frozen=True)
    class Twice:
        sharpness: ClassVar[str] = "always"

        def gradient(self, step):
            e = ascent(step.gradient(), 0.1)
            with step.shifted(e), step.shifted(e):
                return step.gradient()

    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), Twice(), model)
    before = values(model)
    with refused(RuntimeError, "already shifted", "Leave the first `with step.shifted(...)`"):
        opt.backward(losses_of(model), *data())
    assert_equal(values(model), before)


def test_of_two_writes_to_one_place_the_first_value_comes_back():
    table = torch.zeros(4)

    class Writing:
        sharpness, passes = "never", (1.0, 1.0)

        def gradient(self, step):
            place = (torch.tensor([1]),)
            step.write(table, place, torch.tensor([1.0]))
            step.write(table, place, torch.tensor([2.0]))
            raise RuntimeError("stop")

    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), Writing(), model)
    with pytest.raises(RuntimeError, match="stop"):
        opt.backward(losses_of(model), *data())
    assert table.tolist() == [0.0] * 4


# -- modes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outside", [False, True])
def test_autocast_that_an_interruption_left_on_is_switched_back(outside):
    """A signal may arrive when ``with torch.autocast`` has taken effect and is not yet sure to be left."""
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)

    def interrupting(x, y):
        torch.set_autocast_enabled("cpu", not outside)
        torch.set_autocast_dtype("cpu", torch.float16)
        torch.set_autocast_cache_enabled(False)
        raise KeyboardInterrupt

    with torch.autocast("cpu", torch.bfloat16, enabled=outside):
        before = signals.modes()
        with pytest.raises(KeyboardInterrupt):
            opt.backward(interrupting, *data())
        assert signals.modes() == before
        opt.backward(losses_of(model), *data())
        assert signals.modes() == before


@pytest.mark.parametrize(
    "method", [SAF(start=0, gap=1), FunctionalSAM(0.1), SAM(0.1)], ids=["SAF", "Functional", "SAM"]
)
def test_a_step_under_no_grad_is_an_ordinary_step(method):
    grads = []
    for context in (torch.no_grad, torch.enable_grad):
        torch.manual_seed(0)
        model = network()
        opt = SharpnessAware(SGD(model.parameters(), lr=0.1), method, model)

        def losses(x, y, model=model):
            z = model(x)
            return F.cross_entropy(z, y, reduction="none"), z

        with context():
            for _ in range(3):
                opt.zero_grad()
                opt.backward(losses, *data(), index=torch.arange(8))
                assert torch.is_grad_enabled() is (context is torch.enable_grad)
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_a_compiled_loss_function_is_treated_like_a_compiled_model():
    """Its graph may have recorded the addresses of the weights, so these are not swapped."""
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    seen = set()

    def losses(x, y):
        seen.add(model[0].weight.data_ptr())
        return losses_of(model)(x, y)

    opt.backward(losses, *data())
    assert len(seen) == 2
    losses._torchdynamo_orig_callable = losses  # as torch.compile marks it
    seen.clear()
    opt.backward(losses, *data())
    assert seen == {model[0].weight.data_ptr()}


# -- signals at random moments -----------------------------------------------------------------------------------------


class Backward:
    """A model with BatchNorm and dropout-free layers, one module in evaluation mode, and gradients that are there."""

    def __init__(self, method, *, accumulated=True):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
        self.model[2].eval()
        base = torch.optim.SGD(self.model.parameters(), lr=torch.tensor(0.1), momentum=0.9)
        self.opt = SharpnessAware(base, method, self.model)
        self.x, self.y = torch.randn(12, 6), torch.randint(3, (12,))
        for _ in range(3):
            self.backward()
            self.opt.step()
            self.opt.zero_grad()
        if accumulated:
            self.backward()
        self.grads = [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]
        self.saved = copy.deepcopy((self.model.state_dict(), self.opt.state_dict()))

    def losses(self, x, y):
        z = self.model(x)
        return F.cross_entropy(z, y, reduction="none"), z

    def backward(self):
        return self.opt.backward(self.losses, self.x, self.y)

    def call(self):
        self.backward()

    def reset(self):
        self.model.load_state_dict(self.saved[0])
        self.opt.load_state_dict(self.saved[1])
        for p, g in zip(self.model.parameters(), self.grads, strict=True):
            p.grad = None if g is None else g.clone()

    def state(self):
        """Everything that a step may change, and what it switches on the way."""
        grads = [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]
        flags = [m.training for m in self.model.modules()]
        kept = {**self.model.state_dict(), "opt": self.opt.state_dict(), "grads": grads}
        return copy.deepcopy({**kept, "flags": flags, "running": self.opt._running})


class Closure(Backward):
    """torch's closure, whose gradient is added to the one that is there."""

    def call(self):
        def closure():
            loss = self.losses(self.x, self.y)[0].mean()
            loss.backward()
            return loss

        self.opt.accumulate(closure)


class Autocast(Backward):
    """A loss function that switches to half precision itself."""

    def losses(self, x, y):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            shift = self.model(x).float().mean()
        with torch.autocast("cpu", torch.bfloat16):
            z = self.model(x)
        return F.cross_entropy(z.float() + shift, y, reduction="none"), z


class Load(Backward):
    """A saved state of another moment."""

    def __init__(self, method):
        super().__init__(method)
        self.opt.step()
        self.other = copy.deepcopy(self.opt.state_dict())
        self.reset()

    def call(self):
        self.opt.load_state_dict(self.other)


SUBJECTS = {
    **{type(m).__name__: lambda m=m: Backward(m) for m in METHODS},
    **{f"{type(m).__name__}, empty": lambda m=m: Backward(m, accumulated=False) for m in METHODS},
    "closure": lambda: Closure(SAM(0.1)),
    "autocast": lambda: Autocast(SAM(0.1)),
    "load": lambda: Load(LookSAM(0.1, k=2)),
}


@pytest.mark.skipif(not signals.HERE, reason="this system has no timer signals")
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread")
@pytest.mark.parametrize("count", few_or_many(12, 300))
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_signal_at_any_moment(subject, count, monkeypatch):
    # Python tells this hook of a handler that raises inside a destructor, and the step runs to its end.
    monkeypatch.setattr(sys, "unraisablehook", id)
    cut_off(SUBJECTS[subject](), count)
