"""A signal whose handler raises inside the optimizer changes everything or nothing: weights, buffers, .grad, modes."""

from __future__ import annotations

import copy
import gc
import sys
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ausam import GSAM, MESA, SAM, LookSAM, MomentumSAM, SharpnessAware
from tests import signals
from tests.helpers import few_or_many, same
from tests.signals import Interrupt, cut_off

METHODS = [SAM(0.1), MESA(start=0, decay=0.9), GSAM(0.1), LookSAM(0.1, k=2), MomentumSAM(0.1)]

pytestmark = pytest.mark.skipif(not signals.HERE, reason="this system has no timer signals")


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
        hooks = [len(p._backward_hooks or ()) for p in self.model.parameters()]
        return copy.deepcopy({**kept, "flags": flags, "hooks": hooks, "busy": len(self.opt._under_way)})


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


@pytest.fixture
def unraisable(monkeypatch):
    """Python tells this hook of a handler that raises inside a destructor, and the step runs to its end.

    pytest's own is Python code, which the next signal may cut off.
    """
    monkeypatch.setattr(sys, "unraisablehook", id)


needs_main_thread = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread"
)


@needs_main_thread
@pytest.mark.usefixtures("unraisable")
@pytest.mark.parametrize("count", few_or_many(8, 200))
@pytest.mark.parametrize("accumulated", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_a_signal_in_backward(method, accumulated, count):
    cut_off(Backward(method, accumulated=accumulated), count, twice=True)


@needs_main_thread
@pytest.mark.usefixtures("unraisable")
@pytest.mark.parametrize("count", few_or_many(20, 500))
@pytest.mark.parametrize("kind", [Closure, Autocast, Load])
def test_a_signal_elsewhere(kind, count):
    cut_off(kind(LookSAM(0.1, k=2) if kind is Load else SAM(0.1)), count, twice=True)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_a_traceback_that_is_dropped_later_changes_nothing(method):
    subject = Backward(method, accumulated=False)
    calls = []

    def losses(x, y):
        calls.append(1)
        if len(calls) == subject.passes:
            raise Interrupt
        z = subject.model(x)
        return F.cross_entropy(z, y, reduction="none"), z

    subject.opt.zero_grad()
    for subject.passes in (1, 2):
        calls.clear()
        try:
            subject.opt.backward(losses, subject.x, subject.y)
        except Interrupt as error:
            kept = error
        subject.opt.zero_grad()
    for _ in range(3):
        subject.backward()
        subject.opt.step()
        subject.opt.zero_grad()
    before = subject.state()
    del kept
    gc.collect()
    assert same(subject.state(), before)
