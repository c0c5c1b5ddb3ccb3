"""A finite gradient whose norm overflows: the step is skipped, and no statistics are spoilt."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ausam import AESAM, ASAM, GSAM, SAM, SharpnessAware
from ausam.common.tensors import ascent, norm

HUGE = 3e19  # finite, but its square is not, in float32


def test_the_norm_is_nan_and_never_infinite():
    assert norm([torch.tensor([3.0, 4.0]), None]).item() == 5.0
    assert math.isnan(norm([torch.tensor([HUGE, HUGE])]).item())
    assert math.isnan(norm([torch.full((4,), 1e19), torch.full((4,), 1e19)]).item())
    assert norm([torch.tensor([HUGE], dtype=torch.float64)]).item() == HUGE
    assert ascent([torch.tensor([HUGE, HUGE])], 0.1)[0].isnan().all()


def optimizer(method):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return model, SharpnessAware(SGD(model.parameters(), lr=0.1), method, model)


@pytest.mark.parametrize("method", [SAM(0.1), ASAM(0.5), GSAM(0.1), AESAM(total_steps=100)], ids=repr)
def test_such_a_step_is_skipped_and_counted(method):
    model, opt = optimizer(method)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.warns(RuntimeWarning, match="not finite"):
        opt.backward(lambda x: HUGE * model(x).squeeze(1), torch.ones(2, 4))
    opt.step()
    assert opt.skipped == 1
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("nonfinite", ["skip", "ignore"])
@pytest.mark.filterwarnings("ignore:The loss or the gradient")
def test_the_averages_of_aesam_survive_it(nonfinite):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.0), AESAM(total_steps=100), model, nonfinite=nonfinite)
    for factor in (1.0, 2.0, HUGE, 1.0):
        opt.zero_grad()
        opt.backward(lambda x, f=factor: f * model(x).squeeze(1), torch.ones(2, 4))
    state = opt._memory.values
    assert state["count"] == 3
    assert math.isfinite(state["mean"])
    assert math.isfinite(state["variance"])
