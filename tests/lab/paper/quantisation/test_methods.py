"""Methods and policies on quantised networks: ranges move once a step."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ausam import METHODS, SharpnessAware
from ausam_lab.paper.quantisation import quantize
from tests.helpers import make


def small(seed=0):
    torch.manual_seed(seed)
    body = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)]
    return quantize(nn.Sequential(*body, nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)))


def ranges(model):
    return {k: v.clone() for k, v in model.state_dict().items() if ".inputs." in k}


@pytest.mark.parametrize("name", METHODS)
def test_ranges_move_once_a_step_from_the_pass_at_w(name):
    model = small()
    method = METHODS["MESA"](start=1) if name == "MESA" else make(name)  # its teacher needs ranges to be evaluated
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), method, model)
    torch.manual_seed(1)
    for step in range(4):
        x, y, index = torch.randn(12, 1, 4, 4), torch.arange(12) % 3, torch.arange(12)
        expected = copy.deepcopy(model)
        expected(x)
        before = [p.detach().clone() for p in model.parameters()]

        def losses(x, y):
            z = model(x)
            return F.cross_entropy(z, y, reduction="none"), z

        opt.backward(losses, x, y, index=index)
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        assert {int(v) for k, v in ranges(model).items() if k.endswith("seen")} == {step + 1}
        # K-SAM's pass at w that counts is of some rows; Momentum-SAM and PreviousGradientSAM have none at w
        if name not in ("KSAM", "MomentumSAM", "PreviousGradientSAM"):
            theirs = ranges(expected)
            assert all(torch.equal(v, theirs[k]) for k, v in ranges(model).items())
        opt.step()
        opt.zero_grad()
        assert not all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert opt.skipped == 0
