"""What a step leaves in .grad, and that the weights come back."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from ausam import ASAM, SAM, Plain, SharpnessAware
from tests.helpers import assert_equal, data, losses_of, network, values
from tests.optimizer.parts import BASES, Branches


def test_a_gradient_that_was_there_does_not_bend_the_perturbation():
    model = network(batchnorm=False)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    opt.backward(losses_of(model), *data())
    alone = [p.grad.clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.full_like(p, 100.0)
    opt.backward(losses_of(model), *data())
    for p, g in zip(model.parameters(), alone, strict=True):
        torch.testing.assert_close(p.grad, g + 100.0, rtol=0, atol=0)


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_unused_and_frozen_parameters_keep_grad_none_and_do_not_move(base):
    model = Branches()
    opt = SharpnessAware(base(model.parameters()), SAM(0.5), model)
    before = values(model)
    for step in range(3):
        opt.backward(losses_of(model), *data(step))
        assert all(p.grad is None for m in (model.unused, model.frozen) for p in m.parameters())
        assert all(p.grad is not None for p in model.used.parameters())
        opt.step()
    after = values(model)
    for name in before:
        assert torch.equal(before[name], after[name]) == (not name.startswith("used")), name


def test_a_parameter_reached_in_pass_1_only_comes_back():
    # Trap 6: it has no gradient when the weights are restored, but it was moved.
    model = Branches()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1, weight_decay=0.1), SAM(0.5), model)
    before = values(model)
    opt.backward(losses_of(model), *data())
    assert_equal(values(model), before)
    assert all(p.grad is None for p in model.first.parameters())


def test_parameters_of_another_optimizer_get_the_last_pass_alone():
    model = network(batchnorm=False, dtype=torch.float64)
    x, y = data(dtype=torch.float64)
    head = list(model[2].parameters())
    opt = SharpnessAware(SGD(model[0].parameters(), lr=0.1), SAM(0.2), model)
    head[0].grad = torch.ones_like(head[0])
    head_before = values(model[2])
    opt.backward(losses_of(model), x, y)

    twin = network(batchnorm=False, dtype=torch.float64)
    body = list(twin[0].parameters())
    g = torch.autograd.grad(losses_of(twin)(x, y).mean(), body)
    length = torch.cat([gi.flatten() for gi in g]).norm()
    with torch.no_grad():
        for p, gi in zip(body, g, strict=True):
            p += 0.2 * gi / length
    expected = torch.autograd.grad(losses_of(twin)(x, y).mean(), list(twin.parameters()))
    for p, gi in zip(model[0].parameters(), expected[:2], strict=True):
        torch.testing.assert_close(p.grad, gi)
    torch.testing.assert_close(head[0].grad, 1.0 + expected[2])
    torch.testing.assert_close(head[1].grad, expected[3])
    assert_equal(values(model[2]), head_before)


@pytest.mark.parametrize("method", [SAM(0.0), SAM(0.1), ASAM(0.5)], ids=["rho0", "sam", "asam"])
def test_zero_gradients_do_no_harm(method):
    model = network(batchnorm=False)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), method, model)
    before = values(model)
    opt.backward(lambda x: 0.0 * model(x).sum(1), data()[0])
    opt.step()
    assert_equal(values(model), before)
    assert opt.skipped == 0


def test_plain_takes_sparse_gradients_as_torch_does():
    models = [nn.Embedding(5, 3, sparse=True) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    index = torch.tensor([0, 2, 2])
    opt = SharpnessAware(SGD(models[0].parameters(), lr=0.1), Plain(), models[0])
    plain = SGD(models[1].parameters(), lr=0.1)
    for _ in range(3):
        for _ in range(2):  # accumulated, too
            opt.backward(lambda i: models[0](i).square().sum(1), index)
            models[1](index).square().sum(1).mean().backward()
        opt.step()
        opt.zero_grad()
        plain.step()
        plain.zero_grad()
    assert torch.equal(models[0].weight, models[1].weight)


def test_dict_batches():
    model = network()
    x, y = data()
    torch.manual_seed(3)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    opt.backward(losses_of(model), x, y)
    expected = [p.grad for p in model.parameters()]
    opt.zero_grad()
    feedback = opt.backward(
        lambda batch: F.cross_entropy(model(batch["x"]), batch["y"], reduction="none"),
        {"x": x, "y": y, "text": ["a"] * 8},
        index=list(range(8)),
    )
    for p, g in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=0, atol=0)
    assert feedback.index.tolist() == list(range(8))


def test_a_gradient_that_is_a_view_of_each_samples_share_is_its_own_in_the_second_pass():
    """A parameter that reaches the losses through views alone: autograd hands the share on as its gradient."""
    model = torch.nn.Module()
    model.p = torch.nn.Parameter(torch.ones(4, 1))
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), SAM(rho=0.5), model)
    opt.backward(lambda: model.p.squeeze(1))
    assert model.p.grad.flatten().tolist() == [0.25] * 4
