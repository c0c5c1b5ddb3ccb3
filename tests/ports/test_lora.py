"""LoRA by hand: frozen weights with trained low-rank corrections. Only the corrections are perturbed and trained."""

import torch
import torch.nn.functional as F
from torch import nn

from ausam import SAM, SharpnessAware
from tests.helpers import same_weights
from tests.ports.by_hand import RHO, sam_gradient, twins


class LoRA(nn.Module):
    """``x W' + x A' B'``, with W frozen."""

    def __init__(self, layer, rank=2):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / rank)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + x @ self.a.T @ self.b.T


def adapted():
    return nn.Sequential(LoRA(nn.Linear(6, 8)), nn.Tanh(), LoRA(nn.Linear(8, 3)))


def batches():
    rng = torch.Generator().manual_seed(3)
    for _ in range(6):
        yield torch.randn(10, 6, generator=rng).double(), torch.randint(3, (10,), generator=rng)


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def test_only_the_corrections_are_trained():
    ours, theirs = twins(adapted)
    frozen = [p.clone() for p in ours.parameters() if not p.requires_grad]
    opt = SharpnessAware(torch.optim.AdamW(trained(ours), lr=0.01), SAM(rho=RHO), ours)
    seen = []

    def losses(x, y):
        seen.append([p.clone() for p in ours.parameters() if not p.requires_grad])
        return F.cross_entropy(ours(x), y, reduction="none")

    for x, y in batches():
        opt.backward(losses, x, y)
        opt.step()
        opt.zero_grad()
    adam = torch.optim.AdamW(trained(theirs), lr=0.01)
    for x, y in batches():
        sam_gradient(theirs, lambda x=x, y=y: F.cross_entropy(theirs(x), y).backward())
        adam.step()
        adam.zero_grad()
    same_weights(ours, theirs, rtol=1e-9, atol=1e-12)
    for weights in seen:  # never moved, not even within a step
        assert all(map(torch.equal, weights, frozen))
    assert all(p.grad is None for p in ours.parameters())
