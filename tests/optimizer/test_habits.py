"""Habits from other libraries: the error says what to write."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torch.optim import SGD

from ausam import METHODS, SAM, AUSampling, Feedback, SharpnessAware, check
from tests.helpers import network, refused


def test_parameters_for_the_method():
    model = network()
    with refused(TypeError, "SharpnessAware(SGD(model.parameters()", "SAM(rho=0.05), model)"):
        SAM(model.parameters(), SGD, rho=0.05, lr=0.1)
    for arguments in ((model.parameters(),), (list(model.parameters()), torch.optim.Adam)):
        with refused(TypeError, "takes settings, not parameters"):
            SAM(*arguments)
    with refused(TypeError, "SharpnessAware(SGD(model.parameters()"):
        SAM(base_optimizer=SGD, params=model.parameters())


def test_parameters_for_the_optimizer():
    with refused(TypeError, "base is a generator", "SharpnessAware(SGD(model.parameters()"):
        SharpnessAware(network().parameters(), SGD, rho=0.05, lr=0.1)


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
