"""What docs/port.md and docs/training-step.md promise to those who come from another implementation."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ausam import SAM, Plain, SharpnessAware
from tests.helpers import losses_of
from tests.test_compat import Slow


@pytest.mark.parametrize("normalised", [False, True], ids=["plain", "BatchNorm"])
def test_sam_is_davda54s_bit_for_bit(normalised):
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(16)] if normalised else []
    ours = nn.Sequential(nn.Linear(8, 16), *middle, nn.ReLU(), nn.Linear(16, 3))
    theirs = copy.deepcopy(ours)
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
    opt = SharpnessAware(torch.optim.SGD(ours.parameters(), **settings), SAM(rho=0.05), ours)
    slow = Slow([{"params": theirs.parameters()}], torch.optim.SGD, rho=0.05, **settings)
    for _ in range(50):
        x, y = torch.randn(32, 8), torch.randint(3, (32,))
        opt.backward(losses_of(ours), x, y)
        opt.step()
        opt.zero_grad()
        cross_entropy(theirs(x), y).backward()
        slow.first_step()
        cross_entropy(theirs(x), y).backward()
        slow.second_step()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b)


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
