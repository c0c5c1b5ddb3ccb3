"""A timer signal whose handler raises, at a random moment of a call: everything must have happened, or nothing."""

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


def interrupted(function, seconds):
    """Whether a signal after so many seconds cut the call off."""
    waiting = [True]

    def handler(*_):
        if waiting.pop():
            raise Interrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        function()
        waiting[:] = [False]
        return False
    except Interrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def modes():
    """What torch has switched on, which a signal may leave switched."""
    return {
        "gradients": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "precision": torch.get_autocast_dtype("cpu"),
        "cache": torch.is_autocast_cache_enabled(),
    }


def cut_off(subject, signals):
    """Interrupt the subject's call until so many signals have cut it off; each time, all or nothing has happened.

    Some signals come too late, and more of them on a busy machine: then there are more tries, but no failure.

    Arguments:
        subject: has ``call()``, ``state()``, which gives something to compare, and ``reset()``.
        signals: how many.
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
        cut = interrupted(subject.call, rng.uniform(1e-6, 1.2 * typical))
        now = {**modes(), **subject.state()}
        torch.set_grad_enabled(True)  # so that a failure is this test's alone
        hits += cut
        assert same(now, after) or (cut and same(now, before)), trial
        subject.reset()
        if hits == signals:
            break
