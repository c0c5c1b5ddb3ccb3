"""What docs/port.md and docs/training-step.md promise to those who come from another implementation."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ausam import ASAM, SAM, Plain, SharpnessAware
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


def test_asam_with_all_scaled_is_the_adaptive_sam_of_pytorch_optimizer():
    other = pytest.importorskip("pytorch_optimizer", reason="needs pytorch_optimizer, which the extra dev brings")
    torch.manual_seed(0)
    x, y = torch.randn(64, 8), torch.randint(3, (64,))
    ours = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    theirs = copy.deepcopy(ours)
    opt = other.SAM(theirs.parameters(), torch.optim.SGD, rho=2.0, adaptive=True, lr=0.1, momentum=0.9)
    cross_entropy(theirs(x), y).backward()
    opt.first_step(zero_grad=True)
    cross_entropy(theirs(x), y).backward()
    opt.second_step(zero_grad=True)
    base = torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9)
    opt = SharpnessAware(base, ASAM(rho=2.0, eta=0, scaled="all"), ours)
    opt.backward(losses_of(ours), x, y)
    opt.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_class_weights_as_losses_md_writes_them_are_torchs():
    torch.manual_seed(0)
    x, y, weight = torch.randn(64, 8), torch.randint(3, (64,)), torch.tensor([1.0, 2.0, 5.0])
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    criterion = nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1, reduction="none")
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), Plain(), model)
    opt.backward(lambda x, y: criterion(model(x), y) * len(y) / weight[y].sum(), x, y)
    ours = [p.grad.clone() for p in model.parameters()]
    opt.zero_grad()
    cross_entropy(model(x), y, weight=weight, label_smoothing=0.1).backward()
    for p, g in zip(model.parameters(), ours, strict=True):
        torch.testing.assert_close(p.grad, g)
