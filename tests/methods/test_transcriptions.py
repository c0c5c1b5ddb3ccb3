"""Methods against slow transcriptions of their formulas, step by step, and where one method is another."""

from __future__ import annotations

import pytest
import torch

from ausam import ESAM, GSAM, KSAM, SAM, WSAM, FriendlySAM, LookSAM, Plain, PreviousGradientSAM
from ausam.common.random import generator
from tests.methods.slow import (
    GUARD,
    ROUNDED,
    SEED,
    assert_path,
    equal_samples,
    grad_at,
    identical,
    inner,
    length,
    losses_at,
    ours,
    plus,
    sam_rule,
    theirs,
)


def friendly_rule(rho, sigma, lmbda):
    m = None

    def rule(w, x, y, step):
        nonlocal m
        g = grad_at(w, x, y)
        d = g if m is None else plus(g, m, -sigma)
        m = g if m is None else [lmbda * a + (1 - lmbda) * b for a, b in zip(m, g, strict=True)]
        return grad_at(plus(w, d, rho / length(d)), x, y)

    return rule


def gsam_rule(rho, alpha):
    def rule(w, x, y, step):
        g = grad_at(w, x, y)
        g_s = grad_at(plus(w, g, rho / length(g)), x, y)
        cosine = inner(g, g_s) / (length(g) * length(g_s))
        g_perp = plus(g, g_s, -cosine * length(g) / length(g_s))
        return plus(g_s, g_perp, -alpha)

    return rule


def wsam_rule(rho, gamma):
    """The coupled form; tests/methods/test_wsam.py has the decoupled one."""

    def rule(w, x, y, step):
        g = grad_at(w, x, y)
        g_s = grad_at(plus(w, g, rho / length(g)), x, y)
        return plus(g, plus(g_s, g, -1.0), gamma / (1 - gamma))  # that of L + gamma / (1 - gamma) * sharpness

    return rule


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


def esam_rule(rho, beta, gamma):
    def rule(w, x, y, step):
        g = grad_at(w, x, y)
        draws = torch.rand(len(w), generator=generator(SEED, step)).tolist()
        chosen = [u < beta or u == min(draws) for u in draws]
        g = [t if c else torch.zeros_like(t) for t, c in zip(g, chosen, strict=True)]
        moved = plus(w, g, rho / beta / length(g))
        hurt = losses_at(moved, x, y) - losses_at(w, x, y)
        order = sorted(range(len(x)), key=lambda i: -float(hurt[i]))
        rows = order[: max(1, round(gamma * len(x)))]
        return grad_at(moved, x[rows], y[rows])

    return rule


def ksam_rule(rho, keep):
    def rule(w, x, y, step):
        losses = losses_at(w, x, y).tolist()
        order = sorted(range(len(x)), key=lambda i: -losses[i])
        rows = order[: max(1, round(keep * len(x)))]
        g = grad_at(w, x[rows], y[rows])
        return grad_at(plus(w, g, rho / length(g)), x[rows], y[rows])

    return rule


def previous_gradient_rule(rho):
    g = None

    def rule(w, x, y, step):
        nonlocal g
        g = grad_at(w if g is None else plus(w, g, rho / (length(g) + GUARD)), x, y)
        return g

    return rule


@pytest.mark.parametrize(
    ("method", "rule", "arguments"),
    [
        (SAM, sam_rule, (0.3,)),
        (FriendlySAM, friendly_rule, (0.3, 1.0, 0.9)),
        (FriendlySAM, friendly_rule, (0.3, 0.5, 0.6)),
        (GSAM, gsam_rule, (0.3, 0.4)),
        (GSAM, gsam_rule, (0.05, 1.3)),
        *((lambda *a: WSAM(*a, decouple=False), wsam_rule, a) for a in ((0.3, 0.9), (0.05, 0.8), (0.3, 0.2))),
        (LookSAM, looksam_rule, (0.3, 3, 0.7)),
        (LookSAM, looksam_rule, (0.1, 1, 0.2)),
        (ESAM, esam_rule, (0.3, 0.6, 0.5)),
        (ESAM, esam_rule, (0.3, 0.05, 0.3)),
        (KSAM, ksam_rule, (0.3, 0.5)),
        (KSAM, ksam_rule, (0.3, 0.1)),
        (PreviousGradientSAM, previous_gradient_rule, (0.3,)),
        (PreviousGradientSAM, previous_gradient_rule, (0.05,)),
    ],
    ids=lambda v: v.__name__ if isinstance(v, type) else "",
)
def test_equals_the_transcription(method, rule, arguments):
    assert_path(ours(method(*arguments), 12), theirs(rule(*arguments), 12))


def test_the_slow_side_of_gsam_is_sam_too_without_the_descent():
    assert_path(theirs(gsam_rule(0.3, 0), 6), theirs(sam_rule(0.3), 6))


@pytest.mark.parametrize(
    ("method", "other"),
    [
        *((method, SAM(0.3)) for method in (FriendlySAM(0.3, 0), GSAM(0.3, 0), LookSAM(0.3, 1))),
        *((method, SAM(0.3)) for method in (ESAM(0.3, 1, 1), KSAM(0.3, 1))),
        *((SAM(0.3, **parts), SAM(0.3)) for parts in ({"m": 8}, {"m": 100}, {"ascent": 1.0}, {"ascent": 0.95})),
        (PreviousGradientSAM(0.0), Plain()),
    ],
    ids=str,
)
def test_with_these_settings_it_is_another_method_bit_for_bit(method, other):
    assert identical(ours(method, 6), ours(other, 6))


@pytest.mark.parametrize("method", [ESAM, KSAM])
def test_the_right_number_of_rows_is_kept_also_of_equal_samples(method):
    """Equal samples tie in every loss: keeping "more than a threshold" would keep none of them."""
    for part, n, kept in ROUNDED:
        opt, feedback = equal_samples(ESAM(0.3, 0.6, part) if method is ESAM else KSAM(0.3, part), n)
        passes = (2 * n + kept, n + kept) if method is ESAM else (n + 2 * kept, 2 * kept)
        assert (opt.samples_forward, opt.samples_backward) == passes
        assert int(feedback.perturbed.isfinite().sum()) == (n if method is ESAM else kept)
