"""GSAM against a slow transcription of its formula and against another library, step by step."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from ausam import GSAM, SAM, Plain
from tests.methods.slow import (
    LR,
    MOMENTUM,
    assert_path,
    batch,
    grad_at,
    identical,
    inner,
    length,
    network,
    ours,
    plus,
    theirs,
)


def gsam_rule(rho, alpha):
    def rule(w, x, y, step):
        g = grad_at(w, x, y)
        g_s = grad_at(plus(w, g, rho / length(g)), x, y)
        cosine = inner(g, g_s) / (length(g) * length(g_s))
        g_perp = plus(g, g_s, -cosine * length(g) / length(g_s))
        return plus(g_s, g_perp, -alpha)

    return rule


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        (GSAM(0.3, 0.4), lambda: gsam_rule(0.3, 0.4)),
        (GSAM(0.05, 1.3), lambda: gsam_rule(0.05, 1.3)),
    ],
    ids=lambda v: "" if callable(v) else str(v),
)
def test_equals_the_transcription(method, rule):
    assert_path(ours(method, 12), theirs(rule(), 12))


def test_no_descent_is_sam_bit_for_bit():
    assert identical(ours(GSAM(0.3, 0), 6), ours(SAM(0.3), 6))


def test_the_slow_side_is_sam_too_without_the_descent():
    assert_path(theirs(gsam_rule(0.3, 0), 6), ours(SAM(0.3), 6))


@pytest.mark.parametrize("alpha", [0.0, 0.4, 0.9])
def test_equals_pytorch_optimizers(alpha):
    """Its form is ours, decomposition included; it subtracts e instead of copying w back, hence the tolerance.

    Its radius comes from a scheduler object, of which a constant is the simplest. Its global norm is accumulated in
    float32 whatever the gradients are, so the comparison is as exact as that and no more.
    """
    other = pytest.importorskip("pytorch_optimizer")

    class Constant:
        def step(self):
            return 0.3

    model = network(batchnorm=False)
    base = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    opt = other.GSAM(model.parameters(), base, model, Constant(), alpha=alpha)
    path = []
    for step in range(6):
        opt.set_closure(F.cross_entropy, *batch(step))
        opt.step()
        path.append([p.detach().clone() for p in model.parameters()])
    assert_path(ours(GSAM(0.3, alpha), 6), path, tol=1e-6)
    assert not identical(path, ours(Plain(), 6))
