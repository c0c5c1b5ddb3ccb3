"""What docs/port.md promises to those who come from another implementation."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ausam import SAM, SharpnessAware
from tests.helpers import losses_of


def davda54_step(model, base, x, y, rho):
    """Two passes as davda54/sam takes them: its formulas, in its order, with the weights put back from a copy."""
    cross_entropy(model(x), y).backward()
    parameters = list(model.parameters())
    norm = torch.stack([p.grad.norm(p=2) for p in parameters]).norm(p=2)
    old = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for p in parameters:
            p.add_(p.grad * (rho / (norm + 1e-12)))
    base.zero_grad()
    cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p, w in zip(parameters, old, strict=True):
            p.copy_(w)
    base.step()
    base.zero_grad()


@pytest.mark.parametrize("normalised", [False, True], ids=["plain", "BatchNorm"])
def test_sam_is_davda54s_bit_for_bit(normalised):
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(16)] if normalised else []
    ours = nn.Sequential(nn.Linear(8, 16), *middle, nn.ReLU(), nn.Linear(16, 3))
    theirs = copy.deepcopy(ours)
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
    opt = SharpnessAware(torch.optim.SGD(ours.parameters(), **settings), SAM(rho=0.05), ours)
    base = torch.optim.SGD(theirs.parameters(), **settings)
    for _ in range(50):
        x, y = torch.randn(32, 8), torch.randint(3, (32,))
        opt.backward(losses_of(ours), x, y)
        opt.step()
        opt.zero_grad()
        davda54_step(theirs, base, x, y, rho=0.05)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b)
