"""Checkpoints and copies: nothing of the base is lost, and nothing of ours gets into it."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch.optim import SGD

from ausam import SAM, LookSAM, SharpnessAware
from tests.helpers import assert_equal, network, refused, train, values
from tests.optimizer.parts import BASES, Remembering


def test_resume_bit_for_bit():
    """With AdamW and a method of the user's own; every method with SGD is in tests/methods."""
    base, method = BASES["adamw"], Remembering()
    model = network()
    opt = SharpnessAware(base(model.parameters()), method, model)
    train(opt, model, 3)
    file = io.BytesIO()
    torch.save({"opt": opt.state_dict(), "model": model.state_dict()}, file)
    train(opt, model, 4, first=3)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = network(seed=9)
    resumed.load_state_dict(saved["model"])
    again = SharpnessAware(base(resumed.parameters()), method, resumed)
    again.load_state_dict(saved["opt"])
    assert (again.steps, again.samples_forward) == (3, saved["opt"]["ausam"]["samples_forward"])
    train(again, resumed, 4, first=3)
    assert_equal(values(resumed), values(model))
    assert_equal(again.state_dict(), opt.state_dict())


def test_state_dict_is_the_bases_plus_one_key():
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model)
    train(opt, model, 2)
    ours = opt.state_dict()
    own = ours.pop("ausam")
    assert_equal(ours, opt.base.state_dict())
    assert own["steps"] == 2
    assert own["method"] == "SAM"
    assert own["samples_forward"] == own["samples_backward"] == 2 * 8 * 2


def test_another_methods_state_starts_the_method_afresh():
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), Remembering(), model)
    train(opt, model, 2)
    other = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model)
    with pytest.warns(UserWarning, match="saved with Remembering and is loaded into SAM") as caught:
        other.load_state_dict(opt.state_dict())
    assert caught[0].filename == __file__
    assert_equal(other.base.state_dict(), opt.base.state_dict())
    assert other.state_dict()["ausam"]["memory"] == {"values": {}, "owners": None}


def test_saved_memory_is_not_shared_with_the_run_that_loads_it():
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), Remembering(), model)
    train(opt, model, 1)
    state = opt.state_dict()
    again = SharpnessAware(BASES["sgd"](model.parameters()), Remembering(), model)
    again.load_state_dict(state)
    for mine, theirs in zip(again._memory.values["sum"], state["ausam"]["memory"]["values"]["sum"], strict=True):
        assert mine.data_ptr() != theirs.data_ptr()


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["deepcopy", "pickle"]
)
def test_copies_go_on_alike(how, scheduled):
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), Remembering(), model, nonfinite="raise", seed=4)
    if scheduled:
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 1)
        train(opt, model, 2)
        scheduler.step()
    else:
        train(opt, model, 2)
    model2, opt2 = how((model, opt))
    assert opt2.model is model2
    assert opt2.base is not opt.base
    assert [id(p) for g in opt2.param_groups for p in g["params"]] == [id(p) for p in model2.parameters()]
    assert (opt2.nonfinite, opt2.seed) == ("raise", 4)
    before = values(model)
    train(opt2, model2, 3, first=2)
    assert_equal(values(model), before)  # the copy moves itself alone
    train(opt, model, 3, first=2)
    assert_equal(values(model2), values(model))
    assert_equal(opt2.state_dict(), opt.state_dict())


def test_deepcopy_of_the_optimizer_alone_trains_its_own_model():
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model)
    other = copy.deepcopy(opt)
    train(other, other.model, 1)
    train(opt, model, 1)
    assert_equal(values(other.model), values(model))


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: s["ausam"].update(memory={"a": 1}),
        lambda s: s.update(param_groups=[]),
        lambda s: s["param_groups"][0].update(params=[0]),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(damage):
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1, momentum=0.9), LookSAM(), model)
    train(opt, model, 3)
    before = copy.deepcopy(opt.state_dict())
    other = network(1)
    saved = SharpnessAware(SGD(other.parameters(), lr=0.7, momentum=0.9), LookSAM(), other)
    train(saved, other, 5)
    state = copy.deepcopy(saved.state_dict())
    damage(state)
    with pytest.raises((ValueError, KeyError)):
        opt.load_state_dict(state)
    assert_equal(opt.state_dict(), before)


@pytest.mark.parametrize("found", [None, [], "opt.pt", {}, {"model": {}, "optimizer": {}}, network().state_dict()])
def test_the_state_of_something_else(found):
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(), model)
    with refused(ValueError, "opt.state_dict() returned", 'opt.load_state_dict(checkpoint["optimizer"])'):
        opt.load_state_dict(found)


def test_an_interrupted_load_changes_nothing():
    """Not even if the base has loaded its part already."""
    model = network()
    opt = SharpnessAware(BASES["adamw"](model.parameters()), LookSAM(0.1), model)
    train(opt, model, 2)
    before = copy.deepcopy(opt.state_dict())
    train(opt, model, 1)
    after = copy.deepcopy(opt.state_dict())

    def interrupt(_):
        raise KeyboardInterrupt

    hook = opt.base.register_load_state_dict_post_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        opt.load_state_dict(before)
    assert_equal(opt.state_dict(), after)
    hook.remove()
    opt.load_state_dict(before)
    assert_equal(opt.state_dict(), before)
