"""AESAM against a slow transcription of its threshold, alone and with LookSAM inside."""

from __future__ import annotations

import math

import pytest
import torch

from ausam import AESAM, ASAM, SAM, LookSAM, SharpnessAware
from tests.helpers import Closed, refused, with_logits
from tests.methods.slow import GUARD, apply, assert_same, batches, length, network, poison, sgd, slow_gradient, slow_sam


def slow_threshold(sizes, means, delta, lambda1, lambda2, t, total):
    """Is the last of ``sizes`` over the threshold? Averages as sums with weights delta^age."""
    weights = [delta**age for age in range(len(sizes))][::-1]
    means.append(sum(w * s for w, s in zip(weights, sizes, strict=True)) / sum(weights))
    spread = sum(w * (s - m) ** 2 for w, s, m in zip(weights, sizes, means, strict=True)) / sum(weights)
    c = t / total * lambda1 + (1 - t / total) * lambda2
    return sizes[-1] >= means[-1] + c * math.sqrt(spread)


@pytest.mark.filterwarnings("ignore:The loss or the gradient of a step")
@pytest.mark.parametrize("look", [False, True])
def test_takes_the_branches_of_the_formula(look):
    rho, delta, lambda1, lambda2, total, alpha = 0.2, 0.8, -1.2, 0.9, 24, 0.6
    model, twin = network(), network()
    inner = LookSAM(rho, k=3, alpha=alpha) if look else SAM(rho)
    opt = SharpnessAware(sgd(model), AESAM(inner, delta, lambda1, lambda2, total_steps=total), model)
    base, sizes, means, taken, vertical = sgd(twin), [], [], [], None
    for step, (x, y) in enumerate(batches(total)):
        if step in (0, 9):  # thrown away: the averages must not see it
            poison(opt, model)
        feedback = opt.backward(with_logits(model), x, y)
        opt.step()
        opt.zero_grad()
        g = slow_gradient(twin, x, y)
        sizes.append(length(g) ** 2)
        sharp = slow_threshold(sizes, means, delta, lambda1, lambda2, step, total)
        if sharp:
            g_s = slow_sam(twin, x, y, g, rho)
            along = sum(float((a * b).sum()) for a, b in zip(g_s, g, strict=True)) / (length(g) + GUARD) ** 2
            vertical = [a - along * b for a, b in zip(g_s, g, strict=True)]
            g = g_s
        elif look:
            ratio = alpha * length(g) / (length(vertical) + GUARD)
            g = [a + ratio * b for a, b in zip(g, vertical, strict=True)]
        apply(base, g)
        assert_same(model, twin)
        assert bool(feedback.perturbed.isfinite().all()) == sharp
        taken.append(sharp)
    assert taken[0]
    assert 5 < sum(taken) < total - 5
    assert sum(taken[: total // 2]) < sum(taken[total // 2 :])
    assert opt.samples_backward == 9 * (total + sum(taken)) + 2 * 4  # the pass at w is made once


def test_with_asam_inside_a_sharp_step_is_asams_own():
    model, twin = network(), network()
    always = AESAM(ASAM(rho=0.5), lambda1=-1e9, lambda2=-1e9, total_steps=10)
    ours, theirs = SharpnessAware(sgd(model), always, model), SharpnessAware(sgd(twin), ASAM(rho=0.5), twin)
    for x, y in batches(4):
        for opt, m in ((ours, model), (theirs, twin)):
            opt.backward(with_logits(m), x, y)
            opt.step()
            opt.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))


def test_an_inner_method_that_cannot_be_entered_half_way_is_refused():
    with refused(ValueError, "AESAM: inner is ", "Closed", "second(step, g)", "Use ASAM()"):
        AESAM(Closed(), total_steps=9)
