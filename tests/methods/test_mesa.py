"""MESA against a slow transcription of its formula, teacher included."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ausam import MESA, SharpnessAware
from tests.helpers import with_logits
from tests.methods.slow import EXACT, apply, assert_same, batches, network, poison, sgd, slow_ce, slow_kl


@pytest.mark.filterwarnings("ignore:The loss or the gradient of a step")
@pytest.mark.parametrize("micro", [1, 3])
def test_follows_the_formula(micro):
    lam, tau, decay, start = 1.5, 2.0, 0.7, 2
    model, twin = network(), network()
    opt, base = SharpnessAware(sgd(model), MESA(lam, tau, decay, start), model), sgd(twin)
    teacher = copy.deepcopy(twin).eval()
    data = batches(8 * micro)
    for step in range(8):
        if step in (0, 1, 5):  # thrown away: the teacher neither follows twice nor misses a step
            poison(opt, model)
        for x, y in data[step * micro : (step + 1) * micro]:
            opt.backward(with_logits(model), x, y)
        opt.step()
        opt.zero_grad()

        total = [torch.zeros_like(p) for p in twin.parameters()]
        for x, y in data[step * micro : (step + 1) * micro]:
            with torch.no_grad():
                old = teacher(x)
            z = twin(x)
            loss = slow_ce(z, y).mean()
            if step >= start:
                loss = loss + lam * tau**2 * sum(slow_kl(old[i], z[i], tau) for i in range(len(y))) / len(y)
            for t, g in zip(total, torch.autograd.grad(loss, list(twin.parameters())), strict=True):
                t += g
        apply(base, total)
        new = twin.state_dict()
        mixed = {
            k: decay * t + (1 - decay) * new[k] if t.is_floating_point() else t for k, t in teacher.state_dict().items()
        }
        teacher.load_state_dict(mixed)
        assert_same(model, twin)
        assert all(m.training for m in model.modules())
    assert opt.skipped == 3
    assert opt.samples_backward == 8 * micro * 9 + 3 * 4
    # The teacher of the last step, as the next one will find it, is one average behind.
    memory = opt.state_dict()["ausam"]["memory"]["values"]
    for kept, name in zip(memory["teacher"], [n for n, _ in model.named_parameters()], strict=True):
        behind = (dict(teacher.named_parameters())[name] - (1 - decay) * dict(twin.named_parameters())[name]) / decay
        torch.testing.assert_close(kept, behind, **EXACT)


def test_keeps_the_teacher_finer_than_bfloat16():
    model = nn.Linear(2, 3).bfloat16()
    opt = SharpnessAware(sgd(model), MESA(start=0), model)
    opt.backward(with_logits(model), torch.ones(4, 2, dtype=torch.bfloat16), torch.tensor([0, 1, 2, 0]))
    assert [t.dtype for t in opt.state_dict()["ausam"]["memory"]["values"]["teacher"]] == [torch.float32] * 2
