"""A convolutional GAN: two networks with BatchNorm, an optimizer each; the generator learns through the other."""

import torch
import torch.nn.functional as F
from torch import nn

from ausam import SAM, SharpnessAware
from tests.helpers import same_weights
from tests.ports.by_hand import RHO, sam_gradient, twins

STEPS = 4


def generator():
    return nn.Sequential(
        nn.ConvTranspose2d(3, 6, 4, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.ConvTranspose2d(6, 1, 4, 2, 1)
    )


def discriminator():
    return nn.Sequential(
        nn.Conv2d(1, 6, 4, 2, 1, bias=False), nn.BatchNorm2d(6), nn.LeakyReLU(0.2), nn.Conv2d(6, 1, 4), nn.Flatten(0)
    )


def batches():
    rng = torch.Generator().manual_seed(6)
    for _ in range(STEPS):
        yield torch.randn(10, 1, 8, 8, generator=rng).double(), torch.randn(10, 3, 1, 1, generator=rng).double()


def is_real(score):
    return F.binary_cross_entropy_with_logits(score, torch.ones_like(score), reduction="none")


def is_fake(score):
    return F.binary_cross_entropy_with_logits(score, torch.zeros_like(score), reduction="none")


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.5, 0.999))


def train_by_hand(g, d):
    for_g, for_d = adam(g), adam(d)
    for real, noise in batches():
        d.zero_grad()
        sam_gradient(d, lambda x=real: is_real(d(x)).mean().backward())
        first = [p.grad for p in d.parameters()]
        d.zero_grad()
        fake = g(noise).detach()
        sam_gradient(d, lambda x=fake: is_fake(d(x)).mean().backward())
        for p, gradient in zip(d.parameters(), first, strict=True):
            p.grad += gradient
        for_d.step()
        g.zero_grad()
        sam_gradient(g, lambda z=noise: is_real(d(g(z))).mean().backward(), d)
        for_g.step()


def test_two_networks_and_two_optimizers():
    (g, g_twin), (d, d_twin) = twins(generator), twins(discriminator)
    for_g = SharpnessAware(adam(g), SAM(rho=RHO), [g, d])  # so that the other's BatchNorm does not move twice
    for_d = SharpnessAware(adam(d), SAM(rho=RHO), d)
    for real, noise in batches():
        for_d.zero_grad()  # and what the generator's step left in the discriminator
        for_d.backward(lambda x: is_real(d(x)), real)
        for_d.backward(lambda x: is_fake(d(x)), g(noise).detach())
        for_d.step()
        for_g.zero_grad()
        for_g.backward(lambda z: is_real(d(g(z))), noise)
        for_g.step()
    train_by_hand(g_twin, d_twin)
    same_weights(g, g_twin, rtol=1e-9, atol=1e-12)
    same_weights(d, d_twin, rtol=1e-9, atol=1e-12)
    assert int(d[1].num_batches_tracked) == 3 * STEPS  # real, fake, and the generator's first pass
    assert int(g[1].num_batches_tracked) == 2 * STEPS
