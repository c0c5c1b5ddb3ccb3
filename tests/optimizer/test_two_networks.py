"""Two networks in one loss function, as in a GAN."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ausam import SAM, Plain, SharpnessAware
from tests.helpers import assert_equal, values


def networks():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    discriminator = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
    return generator, discriminator


def step(generator, discriminator, model, method):
    opt = SharpnessAware(SGD(generator.parameters(), lr=0.1), method, model)
    losses = lambda z: -discriminator(generator(z)).squeeze(1)  # noqa: E731
    opt.backward(losses, torch.randn(8, 2, generator=torch.Generator().manual_seed(1)))
    return opt


def test_the_buffers_of_every_given_network_move_once():
    once = networks()
    step(*once, once[0], Plain())
    both = networks()
    opt = step(*both, list(both), SAM(0.5))
    assert_equal(dict(both[1].named_buffers()), dict(once[1].named_buffers()))
    assert_equal(dict(both[0].named_buffers()), dict(once[0].named_buffers()))
    opt.step()
    assert_equal(values(both[1]), values(once[1]))  # the discriminator is not trained


def test_the_gradient_is_that_of_the_trained_network_alone():
    one, two = networks(), networks()
    step(*one, one[0], SAM(0.5))
    step(*two, list(two), SAM(0.5))
    for p, q in zip(one[0].parameters(), two[0].parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


@pytest.mark.parametrize("model", [[], [1], "model", None])
def test_what_is_no_module_is_refused(model):
    generator, _ = networks()
    with pytest.raises(TypeError, match="list of modules"):
        SharpnessAware(SGD(generator.parameters(), lr=0.1), SAM(0.5), model)
