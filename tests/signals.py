"""Timer signals whose handler raises, at a random moment of a call: everything must have happened, or nothing."""

from __future__ import annotations

import itertools
import random
import signal
import statistics
import time

import torch

from tests.helpers import same

HERE = hasattr(signal, "setitimer")  # whether this system has timer signals


class Interrupt(BaseException):
    """What the handler raises, as Python's own does KeyboardInterrupt."""


def interrupted(function, first, second=0.0):
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


def modes():
    """What torch has switched on, which a signal may leave switched."""
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return {
        "gradients": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "precision": torch.get_autocast_dtype("cpu"),
        "cache": torch.is_autocast_cache_enabled(),
        "nesting": nesting,
    }


def cut_off(subject, signals, *, twice=False):
    """Interrupt the subject's call until so many signals have cut it off; each time, all or nothing has happened.

    Some signals come too late, and more of them on a busy machine: then there are more tries, but no failure.

    Arguments:
        subject: has ``call()``, ``state()``, which gives something to compare, and ``reset()``.
        signals: how many.
        twice: whether every other one is followed by a second.
    """
    before, durations, rng = {**subject.state(), **modes()}, [], random.Random(1)
    for _ in range(10):
        start = time.perf_counter()
        subject.call()
        durations.append(time.perf_counter() - start)
        after = {**subject.state(), **modes()}
        subject.reset()
    assert same(subject.state() | modes(), before)
    assert not same(after, before)
    typical, hits = statistics.median(durations), 0
    for trial in itertools.count():
        second = rng.uniform(2e-5, 0.3 * typical) if twice and trial % 2 else 0.0
        cut = interrupted(subject.call, rng.uniform(1e-6, 1.2 * typical), second)
        now = {**modes(), **subject.state()}
        torch.set_grad_enabled(True)  # so that a failure is this test's alone
        hits += cut
        assert same(now, after) or (cut and same(now, before)), trial
        subject.reset()
        if hits == signals:
            break
