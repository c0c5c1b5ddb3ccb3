"""A variational autoencoder, whose loss is a sum over the batch: ``reduce="sum"`` keeps the script's gradient."""

import torch
import torch.nn.functional as F
from torch import nn

from ausam import SAM, SharpnessAware
from tests.helpers import same_weights
from tests.ports.by_hand import RHO, sam_gradient, twins


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 2 * 3), nn.Linear(3, 12)

    def forward(self, x):
        mean, logvar = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (logvar / 2).exp()
        return self.decoder(z).sigmoid(), mean, logvar


def per_image(model, x):
    """Reconstruction error plus divergence, summed over pixels and units: one number per image."""
    y, mean, logvar = model(x)
    divergence = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(1)
    return F.binary_cross_entropy(y, x, reduction="none").sum(1) + divergence


def batches():
    rng = torch.Generator().manual_seed(4)
    for _ in range(6):
        yield torch.rand(16, 12, generator=rng).double()


def test_a_loss_that_is_a_sum():
    ours, theirs = twins(VAE)
    opt = SharpnessAware(torch.optim.SGD(ours.parameters(), lr=1e-3, momentum=0.9), SAM(rho=RHO), ours)
    torch.manual_seed(5)  # both draw the same noise, anew in each pass
    total = 0.0
    for x in batches():
        feedback = opt.backward(lambda x: per_image(ours, x), x, reduce="sum")
        total += feedback.loss.sum().item()
        opt.step()
        opt.zero_grad()

    sgd, expected = torch.optim.SGD(theirs.parameters(), lr=1e-3, momentum=0.9), 0.0
    torch.manual_seed(5)
    for x in batches():

        def backward(x=x):
            loss = per_image(theirs, x).sum()
            loss.backward()
            return loss.item()

        expected += sam_gradient(theirs, backward)
        sgd.step()
        sgd.zero_grad()
    same_weights(ours, theirs, rtol=1e-9, atol=1e-12)
    assert abs(total - expected) < 1e-9 * abs(expected)
