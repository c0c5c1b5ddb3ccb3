"""FriendlySAM against a slow transcription of its formula, step by step."""

from __future__ import annotations

import pytest

from ausam import SAM, FriendlySAM
from tests.methods.slow import assert_path, grad_at, identical, length, ours, plus, theirs


def friendly_rule(rho, sigma, lmbda):
    m = None

    def rule(w, x, y, step):
        nonlocal m
        g = grad_at(w, x, y)
        d = g if m is None else plus(g, m, -sigma)
        m = g if m is None else [lmbda * a + (1 - lmbda) * b for a, b in zip(m, g, strict=True)]
        return grad_at(plus(w, d, rho / length(d)), x, y)

    return rule


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        (FriendlySAM(0.3, 1.0, 0.9), lambda: friendly_rule(0.3, 1.0, 0.9)),
        (FriendlySAM(0.3, 0.5, 0.6), lambda: friendly_rule(0.3, 0.5, 0.6)),
    ],
    ids=lambda v: "" if callable(v) else str(v),
)
def test_equals_the_transcription(method, rule):
    assert_path(ours(method, 12), theirs(rule(), 12))


def test_nothing_subtracted_is_sam_bit_for_bit():
    assert identical(ours(FriendlySAM(0.3, 0), 6), ours(SAM(0.3), 6))
