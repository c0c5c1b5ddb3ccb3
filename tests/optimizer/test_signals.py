"""A signal whose handler raises inside opt.backward changes everything or nothing: weights, buffers, .grad, modes."""

from __future__ import annotations

import copy
import gc
import itertools
import random
import signal
import statistics
import sys
import threading
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ausam import GSAM, MESA, SAM, LookSAM, MomentumSAM, SharpnessAware
from tests.helpers import few_or_many

METHODS = [SAM(0.1), MESA(start=0, decay=0.9), GSAM(0.1), LookSAM(0.1, k=2), MomentumSAM(0.1)]

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer signals")


class Interrupt(BaseException):
    """What the handler raises, as Python's own does KeyboardInterrupt."""


class Subject:
    """A model with BatchNorm and dropout-free layers, one module in evaluation mode, and gradients that are there."""

    def __init__(self, method, accumulated):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
        self.model[2].eval()
        base = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
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

    def backward(self):
        def losses(x, y):
            z = self.model(x)
            return F.cross_entropy(z, y, reduction="none"), z

        return self.opt.backward(losses, self.x, self.y)

    def reset(self):
        self.model.load_state_dict(self.saved[0])
        self.opt.load_state_dict(self.saved[1])
        for p, g in zip(self.model.parameters(), self.grads, strict=True):
            p.grad = None if g is None else g.clone()

    def state(self):
        """Everything that a step may change, and what it switches on the way."""
        grads = [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]
        flags = [m.training for m in self.model.modules()]
        found = {**self.model.state_dict(), "opt": self.opt.state_dict(), "grads": grads}
        modes = {"flags": flags, "grad mode": torch.is_grad_enabled(), "busy": len(self.opt._under_way)}
        return copy.deepcopy({**found, **modes})


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    return type(a) is type(b) and a == b


def interrupted(function, first, second):
    """Whether a signal, or two, cut the call off: after ``first`` seconds, and ``second`` after the first."""
    left = [2 if second else 1]

    def handler(*_):
        if left[0] <= 1:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if left[0]:
            left[0] -= 1
            raise Interrupt

    before = signal.signal(signal.SIGALRM, handler)
    hit = True
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, first, second)
            function()
            left[0] = 0
            hit = False
        except Interrupt:
            deadline = time.perf_counter() + second  # the second one, if it did not come while the first passed through
            while left[0] and time.perf_counter() < deadline:
                pass
    except Interrupt:
        pass
    left[0] = 0
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    return hit


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread")
@pytest.mark.parametrize("signals", few_or_many(2, 500))
@pytest.mark.parametrize("accumulated", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_a_signal_leaves_everything_or_nothing(method, accumulated, signals, monkeypatch):
    # Python tells this hook of a handler that raises inside a destructor, and the step runs to its end. pytest's own
    # is Python code, which the next signal may cut off.
    monkeypatch.setattr(sys, "unraisablehook", id)
    subject = Subject(method, accumulated)
    rng = random.Random(1)
    before = subject.state()
    durations = []
    for _ in range(20):
        start = time.perf_counter()
        subject.backward()
        durations.append(time.perf_counter() - start)
        after = subject.state()
        subject.reset()
    assert same(subject.state(), before)
    assert not same(after, before)
    typical = statistics.median(durations)
    hits = 0
    for trial in itertools.count():  # some come too late, and more of them on a busy machine
        second = rng.uniform(2e-5, 0.3 * typical) if trial % 2 else 0.0
        cut = interrupted(subject.backward, rng.uniform(1e-5, 1.1 * typical), second)
        found = subject.state()
        hits += cut
        assert same(found, after) or (cut and same(found, before)), trial
        subject.reset()
        if hits == signals:
            break


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_a_traceback_that_is_dropped_later_changes_nothing(method):
    subject = Subject(method, accumulated=False)
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
