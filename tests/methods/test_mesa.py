"""MESA against a slow transcription of its formula, teacher included."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ausam import MESA, SAF, SharpnessAware
from tests.helpers import losses_of, refused, with_logits
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


@pytest.mark.parametrize("method", [SAF(), MESA()], ids=repr)
def test_outputs_are_asked_for(method):
    model = network()
    opt = SharpnessAware(sgd(model), method, model)
    (x, y), *_ = batches(1)
    name = type(method).__name__
    with refused(TypeError, "loss_fn returned only the losses", "z = model(x)", 'reduction="none"), z'):
        opt.backward(losses_of(model), x, y, index=torch.arange(9))
    with refused(TypeError, f"{name}: the outputs are of shape (9,)", "(n, classes)", 'reduction="none"), z'):
        opt.backward(lambda x, y: (model(x).sum(1),) * 2, x, y, index=torch.arange(9))
    with refused(TypeError, f"{name}: the outputs are a dict", "logits"):
        opt.backward(lambda x, y: (model(x).sum(1), {}), x, y, index=torch.arange(9))
