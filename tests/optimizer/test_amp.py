"""GradScaler, autocast and bfloat16 around one step."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.optim import SGD

from ausam import SAM, SharpnessAware
from tests.helpers import assert_equal, data, losses_of, network, values


def test_autocast_sees_the_shifted_weights_and_then_the_restored():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    x, y = data()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(2.0), model)
    seen = []

    def loss_fn(x, y):
        seen.append({k: v.clone() for k, v in model.state_dict().items()})
        return losses_of(model)(x, y)

    with torch.autocast("cpu", torch.bfloat16):
        feedback = opt.backward(loss_fn, x, y)
        inside = losses_of(model)(x, y)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        here = losses_of(model)(x, y)
    shifted = copy.deepcopy(model)
    shifted.load_state_dict(seen[1])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        there = losses_of(shifted)(x, y)
    assert feedback.loss.dtype == torch.float32
    torch.testing.assert_close(feedback.loss, here.float(), rtol=0, atol=0)
    torch.testing.assert_close(feedback.perturbed, there.float(), rtol=0, atol=0)
    torch.testing.assert_close(inside.detach(), here, rtol=0, atol=0)
    assert float(feedback.sharpness.max()) > 0.1  # or the test could not tell


def test_a_bfloat16_model_perturbs_by_a_float32_norm():
    torch.manual_seed(0)
    model = nn.Linear(64, 64, dtype=torch.bfloat16)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(1.0), model)
    before = values(model)
    feedback = opt.backward(lambda x: model(x).square().mean(1), torch.randn(8, 64, dtype=torch.bfloat16))
    assert_equal(values(model), before)
    assert feedback.loss.dtype == torch.float32
    assert bool((feedback.perturbed > feedback.loss).all())


def test_the_mean_loss_keeps_its_precision_under_autocast():
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    seen = []

    def backward(loss):
        seen.append(loss.dtype)
        (2.0**16 * loss).backward()  # GradScaler's first scale, which is infinite in float16

    with torch.autocast("cpu", torch.float16):
        opt.backward(losses_of(model), *data(), backward=backward)
    assert seen == [torch.float32, torch.float32]
    assert opt.skipped == 0
