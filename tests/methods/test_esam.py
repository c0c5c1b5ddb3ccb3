"""ESAM against a slow transcription of its formula, step by step, and the tensors and rows that it takes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ausam import ESAM, SAM, SharpnessAware
from ausam.common.random import generator
from tests.helpers import losses_of
from tests.methods.slow import (
    LR,
    ROUNDED,
    SEED,
    assert_path,
    batch,
    equal_samples,
    grad_at,
    identical,
    length,
    losses_at,
    ours,
    plus,
    theirs,
)


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


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        (ESAM(0.3, 0.6, 0.5), lambda: esam_rule(0.3, 0.6, 0.5)),
        (ESAM(0.3, 0.05, 0.3), lambda: esam_rule(0.3, 0.05, 0.3)),
    ],
    ids=lambda v: "" if callable(v) else str(v),
)
def test_equals_the_transcription(method, rule):
    assert_path(ours(method, 12), theirs(rule(), 12))


def test_everything_taken_is_sam_bit_for_bit():
    assert identical(ours(ESAM(0.3, 1, 1), 6), ours(SAM(0.3), 6))


@pytest.mark.parametrize(("part", "n", "kept"), ROUNDED)
def test_keeps_the_right_number_also_of_equal_samples(part, n, kept):
    """Equal samples tie in every loss: keeping "more than a threshold" would keep none of them."""
    opt, feedback = equal_samples(ESAM(0.3, 0.6, part), n)
    assert (opt.samples_forward, opt.samples_backward) == (2 * n + kept, n + kept)
    assert int(feedback.perturbed.isfinite().sum()) == n


def test_takes_only_tensors_that_have_a_gradient():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(20)])
            self.used = nn.Linear(4, 3)

        def forward(self, x):
            return self.used(x)

    torch.manual_seed(0)
    model = Half()
    x, y = batch(0)
    for seed in range(10):
        base = torch.optim.SGD(model.parameters(), lr=LR)
        opt = SharpnessAware(base, ESAM(0.3, beta=0.001, gamma=1), model, seed=seed)
        feedback = opt.backward(losses_of(model), x.float(), y)
        assert (feedback.sharpness > 0).any()
        assert all(p.grad is None for p in model.unused)
