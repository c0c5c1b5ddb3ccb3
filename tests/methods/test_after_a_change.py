"""Methods that remember something, after the model has changed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from ausam import MESA, VSAM, FriendlySAM, LookSAM, PreviousGradientSAM, SharpnessAware
from tests.helpers import data, losses_of, network


@pytest.mark.parametrize(
    "method",
    [LookSAM(k=5), VSAM(warmup=1, window=10), FriendlySAM(), PreviousGradientSAM()],
    ids=lambda m: type(m).__name__,
)
@pytest.mark.parametrize("to", [torch.bfloat16, torch.float64])
def test_what_is_remembered_follows_the_precision_of_the_model(method, to):
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.01), method, model)
    for step in range(6):
        if step == 2:
            model.to(to)
        x, y = data(step)
        opt.backward(losses_of(model), x.to(model[0].weight.dtype), y)
        assert all(p.grad is None or p.grad.dtype == p.dtype for p in model.parameters())
        opt.step()
        opt.zero_grad()
    assert opt.skipped == 0


class Observer(nn.Module):
    """A buffer that gets its shape in the first forward, as torch's observers of quantisation do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("least", torch.empty(0))

    def forward(self, x):
        if self.training:
            least = x.detach().amin(0)
            if self.least.numel() == 0:
                self.least.resize_(least.shape)
                self.least.copy_(least)
            else:
                self.least.copy_(torch.minimum(self.least, least))
        return x


def outputs_of(model):
    def losses(x, y):
        z = model(x)
        return F.cross_entropy(z, y, reduction="none"), z

    return losses


def test_mesa_with_a_buffer_that_changes_its_shape():
    model = nn.Sequential(nn.Linear(4, 6), Observer(), nn.Linear(6, 3))
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), MESA(start=1), model)
    for step in range(4):
        opt.backward(outputs_of(model), *data(step))
        opt.step()
        opt.zero_grad()
    assert model[1].least.shape == (6,)
    assert [b.shape for b in opt._memory.values["teacher_buffers"]] == [(6,)]
