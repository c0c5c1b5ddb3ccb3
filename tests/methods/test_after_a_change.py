"""Methods that remember something, after the model has changed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ausam import MESA, VSAM, FriendlySAM, LookSAM, PreviousGradientSAM, SharpnessAware
from tests.helpers import data, losses_of, network, with_logits
from tests.methods import slow


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


def test_mesa_with_a_buffer_that_changes_its_shape():
    model = nn.Sequential(nn.Linear(4, 6), Observer(), nn.Linear(6, 3))
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), MESA(start=1), model)
    for step in range(4):
        opt.backward(with_logits(model), *data(step))
        opt.step()
        opt.zero_grad()
    assert model[1].least.shape == (6,)
    assert [b.shape for b in opt._memory.values["teacher_buffers"]] == [(6,)]


def test_looksam_resumed_without_its_vector_begins_with_a_sam_step():
    model = slow.network(batchnorm=False)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.2), LookSAM(0.3, 5), model)
    fn = losses_of(model)
    for step in range(2):
        opt.backward(fn, *slow.batch(step))
        opt.step()
        opt.zero_grad()
    saved = copy.deepcopy(opt.state_dict())
    saved["ausam"]["memory"]["values"] = {}
    opt.load_state_dict(saved)
    assert opt.steps == 2
    w = [p.detach().clone() for p in model.parameters()]
    feedback = opt.backward(fn, *slow.batch(2))
    assert feedback.perturbed.isfinite().all()
    for p, t in zip(model.parameters(), slow.sam_rule(0.3)(w, *slow.batch(2), 2), strict=True):
        torch.testing.assert_close(p.grad, t, rtol=0, atol=1e-12)
    opt.step()
    assert opt.backward(fn, *slow.batch(3)).perturbed.isnan().all()
