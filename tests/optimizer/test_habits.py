"""Habits from other libraries: the error says what to write."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle

import pytest
import torch
from torch.optim import SGD

from ausam import METHODS, SAM, AUSampling, Feedback, SharpnessAware, check
from tests.helpers import data, losses_of, network, refused


def test_parameters_for_the_method():
    model = network()
    with refused(TypeError, "SharpnessAware(SGD(model.parameters()", "SAM(rho=0.05), model)"):
        SAM(model.parameters(), SGD, rho=0.05, lr=0.1)
    for arguments in ((model.parameters(),), (list(model.parameters()), torch.optim.Adam)):
        with refused(TypeError, "takes settings, not parameters"):
            SAM(*arguments)
    with refused(TypeError, "SharpnessAware(SGD(model.parameters()"):
        SAM(base_optimizer=SGD, params=model.parameters())


def test_an_optimizer_for_the_method():
    with refused(TypeError, "takes settings", "SharpnessAware(Adam(model.parameters()"):
        SAM(torch.optim.Adam(network().parameters()), rho=0.05)


def test_parameters_for_the_optimizer():
    with refused(TypeError, "base is a generator", "SharpnessAware(SGD(model.parameters()"):
        SharpnessAware(network().parameters(), SGD, rho=0.05, lr=0.1)
    with refused(TypeError, "base is the class SGD", "SharpnessAware(SGD(model.parameters()"):
        SharpnessAware(SGD, SAM(0.05), network())
    for settings in ({"params": network().parameters(), "base_optimizer": SGD}, {}):
        with refused(TypeError, "SharpnessAware(SGD(model.parameters()"):
            SharpnessAware(**settings)


def test_a_radius_for_the_optimizer():
    model = network()
    with refused(TypeError, "rho is a setting of the method", "SAM(rho=0.05), model)"):
        SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(), model, rho=0.05)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    assert not hasattr(opt, "rho")
    with refused(AttributeError, 'group["rho"] = 0.2', "RhoSchedule"):
        opt.rho = 0.2


def test_the_model_in_the_place_of_the_method():
    model = network()
    with refused(TypeError, "method is a Sequential,", "SAM(rho=0.05)"):
        SharpnessAware(SGD(model.parameters(), lr=0.1), model, SAM(0.1))


@pytest.mark.parametrize("name", ["first_step", "second_step"])
def test_two_steps(name):
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    assert not hasattr(opt, name)
    with refused(AttributeError, name, "opt.backward(loss_fn, *batch)"):
        getattr(opt, name)(zero_grad=True)


def test_a_radius_by_hand():
    with refused(AttributeError, "SAM(rho=0.2)", "RhoSchedule"):
        SAM(0.1).rho = 0.2


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_still_an_ordinary_frozen_dataclass(name):
    method = METHODS[name](total_steps=9) if name == "AESAM" else METHODS[name]()
    assert copy.deepcopy(method) == pickle.loads(pickle.dumps(method)) == method
    assert "arguments" not in inspect.signature(METHODS[name]).parameters


def test_its_text_says_what_it_is():
    model = network()
    text = repr(SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model))
    assert "SGD" in text
    assert repr(SAM(0.1)) in text
    assert "0 steps" in text


@pytest.mark.parametrize(
    ("method", "policy"), [(SAM(), None), (None, AUSampling()), (SAM, AUSampling), (SAM(), AUSampling)]
)
def test_a_pair_of_something_else(method, policy):
    with refused(TypeError, "an instance such as"):
        check(method, policy)


def test_feedback_of_lists():
    with refused(TypeError, "loss is a list", "torch.tensor"):
        Feedback(None, [1.0], [2.0])


def test_feedback_of_several_lengths():
    with refused(ValueError, "loss has shape (3,)", "perturbed (2,)", "one number per sample"):
        Feedback(None, torch.ones(3), torch.ones(2))


@pytest.mark.parametrize("index", ["index", ["a"] * 8, [[1, 2], [3]]])
def test_an_index_of_something_else(index):
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    with refused(TypeError, "index is", "one whole number per sample", "Indexed(dataset)"):
        opt.backward(losses_of(model), *data(), index=index)


def without_graph(model, x, y):
    with torch.no_grad():
        return losses_of(model)(x, y)


@pytest.mark.parametrize("loss", [without_graph, lambda model, x, y: losses_of(model)(x, y).detach()])
@pytest.mark.parametrize("how", [{}, {"backward": lambda loss: (2 * loss).backward()}])
def test_losses_without_a_graph(loss, how):
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    with refused(RuntimeError, "torch.no_grad()", "detach()", "requires_grad"):
        opt.backward(functools.partial(loss, model), *data(), **how)


def test_a_loss_function_that_calls_backward_itself():
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)

    def losses(x, y):
        loss = losses_of(model)(x, y)
        loss.mean().backward()
        return loss

    with pytest.raises(RuntimeError, match="a second time") as caught:
        opt.backward(losses, *data())
    assert "must not call backward" in caught.value.__notes__[0]
    assert "retain_graph=True would make the gradient wrong" in caught.value.__notes__[0]


@pytest.mark.parametrize("clear", [lambda opt, model: opt.zero_grad(), lambda opt, model: model.zero_grad()])
def test_gradients_cleared_before_the_step(clear):
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    opt.backward(losses_of(model), *data())
    clear(opt, model)
    with pytest.warns(RuntimeWarning, match=r"cleared between opt\.backward and opt\.step.*after opt\.step") as caught:
        opt.step()
    assert caught[0].filename == __file__
    opt.backward(losses_of(model), *data())
    clear(opt, model)
    opt.step()


def test_gradients_that_are_given_up():
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    for take in (False, True):
        opt.zero_grad()
        opt.backward(losses_of(model), *data())
        if take:
            opt.step()
