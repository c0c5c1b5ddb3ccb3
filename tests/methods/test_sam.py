"""SAM against slow, literal transcriptions and another library, step by step."""

from __future__ import annotations

import copy

import pytest
import torch
from pytorch_optimizer import SAM as PeerSAM
from torch.nn import functional as F

from ausam import SAM, SharpnessAware
from tests.helpers import losses_of
from tests.methods.slow import (
    BASES,
    EXACT,
    D,
    assert_follows,
    assert_path,
    assert_same,
    batches,
    network,
    ours,
    sam_perturbation,
    sam_rule,
    slow_two_passes,
    theirs,
)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("batchnorm", [False, True])
def test_step_by_step(batchnorm, base):
    assert_follows(SAM(rho=0.3), sam_perturbation(0.3), batchnorm, base)


def test_the_two_ways_to_write_it_down_agree():
    assert_path(theirs(sam_rule(0.3), 6), ours(SAM(0.3), 6))


def test_with_weights_of_the_samples():
    """Both passes use the weighted sum over n."""
    model = network()
    twin = copy.deepcopy(model)
    fast, slow = BASES["sgd"](model, twin)
    opt = SharpnessAware(fast, SAM(rho=0.3), model)
    weight = torch.linspace(0.0, 2.0, 9, dtype=D)
    for x, y in batches(steps=3):
        opt.backward(losses_of(model), x, y, weight=weight)
        opt.step()
        opt.zero_grad()
        *_, g = slow_two_passes(twin, x, y, sam_perturbation(0.3), weight)
        slow.step(g)
        assert_same(model, twin)


def test_against_another_implementation():
    model = network()
    peer = copy.deepcopy(model)
    opt = SharpnessAware(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4), SAM(rho=0.1), model
    )
    other = PeerSAM(peer.parameters(), torch.optim.SGD, rho=0.1, lr=0.1, momentum=0.9, weight_decay=5e-4)
    mean, var = torch.zeros(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    for step, (x, y) in enumerate(batches(steps=10), start=1):
        with torch.no_grad():
            h = model[0](x)  # at w: what BatchNorm sees, once a step
        mean, var = 0.9 * mean + 0.1 * h.mean(0), 0.9 * var + 0.1 * h.var(0)

        opt.backward(losses_of(model), x, y)
        opt.step()
        opt.zero_grad()

        def closure(x=x, y=y):
            other.zero_grad()
            loss = F.cross_entropy(peer(x), y)
            loss.backward()
            return loss

        closure()
        other.step(closure)
        for p, q in zip(model.parameters(), peer.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-8)  # the other one takes its norm in float32
        torch.testing.assert_close(model[1].running_mean, mean, **EXACT)
        torch.testing.assert_close(model[1].running_var, var, **EXACT)
        assert int(model[1].num_batches_tracked) == step
    assert int(peer[1].num_batches_tracked) == 20  # the other one leaves BatchNorm to the user
