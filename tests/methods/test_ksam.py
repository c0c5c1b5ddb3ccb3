"""KSAM against a slow transcription of its formula, step by step, and the rows that it takes."""

from __future__ import annotations

import pytest

from ausam import KSAM, SAM
from tests.methods.slow import (
    ROUNDED,
    assert_path,
    equal_samples,
    grad_at,
    identical,
    length,
    losses_at,
    ours,
    plus,
    theirs,
)


def ksam_rule(rho, keep):
    def rule(w, x, y, step):
        losses = losses_at(w, x, y).tolist()
        order = sorted(range(len(x)), key=lambda i: -losses[i])
        rows = order[: max(1, round(keep * len(x)))]
        g = grad_at(w, x[rows], y[rows])
        return grad_at(plus(w, g, rho / length(g)), x[rows], y[rows])

    return rule


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        (KSAM(0.3, 0.5), lambda: ksam_rule(0.3, 0.5)),
        (KSAM(0.3, 0.1), lambda: ksam_rule(0.3, 0.1)),
    ],
    ids=lambda v: "" if callable(v) else str(v),
)
def test_equals_the_transcription(method, rule):
    assert_path(ours(method, 12), theirs(rule(), 12))


def test_everything_kept_is_sam_bit_for_bit():
    assert identical(ours(KSAM(0.3, 1), 6), ours(SAM(0.3), 6))


@pytest.mark.parametrize(("part", "n", "kept"), ROUNDED)
def test_keeps_the_right_number_also_of_equal_samples(part, n, kept):
    """Equal samples tie in every loss: keeping "more than a threshold" would keep none of them."""
    opt, feedback = equal_samples(KSAM(0.3, part), n)
    assert (opt.samples_forward, opt.samples_backward) == (n + 2 * kept, 2 * kept)
    assert int(feedback.perturbed.isfinite().sum()) == kept
