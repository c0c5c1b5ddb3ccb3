"""A loss or a gradient that is inf or NaN: skip, raise, ignore."""

from __future__ import annotations

import copy

import pytest
import torch

from ausam import SAM, SharpnessAware
from tests.core.parts import BASES, PLACES, Remembering, spoil
from tests.helpers import assert_equal, data, losses_of, network, refused, train, values


@pytest.mark.parametrize("where", PLACES)
def test_skip_changes_nothing(where):
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), Remembering(), model)
    train(opt, model, 2)
    before, base = values(model), copy.deepcopy(opt.base.state_dict())
    memory = copy.deepcopy(opt.state_dict()["ausam"]["memory"])
    with pytest.warns(RuntimeWarning) as caught:
        feedback = opt.backward(spoil(model, where), *data(2), index=torch.arange(8))
    (message,) = [str(w.message) for w in caught]
    assert all(part in message for part in ("step 2 is not finite", "changes nothing", "`opt.skipped` counts"))
    assert caught[0].filename == __file__
    assert not all(bool(p.grad.isfinite().all()) for p in model.parameters())  # or GradScaler would use it
    opt.step()
    opt.zero_grad()
    assert_equal(values(model), before)
    assert_equal(opt.base.state_dict(), base)
    assert_equal(opt.state_dict()["ausam"]["memory"], memory)
    assert (opt.steps, opt.skipped) == (2, 1)
    assert len(feedback.loss) == len(feedback.perturbed) == 8

    opt.backward(spoil(model, where), *data(2))  # no second warning: warnings are errors here
    opt.step()
    opt.zero_grad()
    assert (opt.steps, opt.skipped) == (2, 2)
    assert_equal(values(model), before)

    # The next good batch is as if nothing had been.
    twin = network()
    clean = SharpnessAware(BASES["sgd"](twin.parameters()), Remembering(), twin)
    train(clean, twin, 3)
    train(opt, model, 1, first=2)
    assert_equal(values(model), values(twin))
    assert_equal(opt.state_dict()["ausam"]["memory"], clean.state_dict()["ausam"]["memory"])
    assert opt.state_dict()["ausam"]["skipped"] == 2


@pytest.mark.parametrize("where", PLACES)
def test_raise_restores_everything(where):
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), Remembering(), model, nonfinite="raise")
    train(opt, model, 1)
    before, ours = values(model), copy.deepcopy(opt.state_dict())
    kept = torch.ones_like(model[0].weight)
    model[0].weight.grad = kept
    with refused(RuntimeError, "step 1 is not finite", "learning rate", 'pass nonfinite="skip"'):
        opt.backward(spoil(model, where), *data(1))
    assert_equal(values(model), before)
    assert model[0].weight.grad is kept
    assert bool((kept == 1).all())
    assert model[0].bias.grad is None
    for key in ("state", "param_groups"):
        assert_equal(opt.state_dict()[key], ours[key])
    assert_equal(opt.state_dict()["ausam"]["memory"], ours["ausam"]["memory"])


@pytest.mark.parametrize("where", PLACES)
def test_ignore_promises_the_weights_alone(where):
    model = network(batchnorm=False)
    opt = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model, nonfinite="ignore")
    before = values(model)
    opt.backward(spoil(model, where), *data())
    assert_equal(values(model), before)
    assert opt.skipped == 0
    opt.step()
    assert opt.steps == 1
    if where.startswith("gradient"):  # an infinite constant has a finite one
        assert not all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_bad_micro_batch_spoils_its_step_only():
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model)
    before = values(model)
    opt.backward(losses_of(model), *data(0))
    stats = values(model)
    with pytest.warns(RuntimeWarning, match="not finite"):
        opt.backward(spoil(model, "loss 1"), *data(1))
    opt.backward(losses_of(model), *data(2))
    opt.step()
    opt.zero_grad()
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
    assert int(model[1].num_batches_tracked) == 2  # of the good ones
    assert int(stats["1.num_batches_tracked"]) == 1
    train(opt, model, 1)
    assert not torch.equal(model[0].weight, before["0.weight"])


def test_cleared_gradients_make_a_skipped_step_usable_again():
    model, twin = network(), network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model)
    with pytest.warns(RuntimeWarning, match="not finite"):
        opt.backward(spoil(model, "loss 2"), *data(1))
    opt.zero_grad()
    train(opt, model, 1)
    train(SharpnessAware(BASES["sgd"](twin.parameters()), SAM(0.1), twin), twin, 1)
    assert_equal(values(model), values(twin))
