"""An exception in the user's code leaves no trace."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ausam import SAM, SharpnessAware
from ausam.common.tensors import ascent
from ausam.optimizer.step import Step
from tests.helpers import assert_equal, data, losses_of, network, refused, train, values
from tests.optimizer.parts import BASES, Counting, Remembering


@pytest.mark.parametrize("bad_pass", [1, 2])
def test_exceptions_leave_no_trace(bad_pass):
    model = nn.Sequential(Counting(), nn.BatchNorm1d(3))
    opt = SharpnessAware(BASES["sgd"](model.parameters()), Remembering(), model)
    before, ours = values(model), copy.deepcopy(opt.state_dict())
    grads = [torch.full_like(p, 0.5) if i % 2 else None for i, p in enumerate(model.parameters())]
    for p, g in zip(model.parameters(), grads, strict=True):
        p.grad = g
    calls = 0

    def loss_fn(x, y):
        nonlocal calls
        calls += 1
        losses = losses_of(model)(x, y)
        if calls == bad_pass:
            raise KeyError("the user's own")
        return losses

    with pytest.raises(KeyError, match="the user's own"):
        opt.backward(loss_fn, *data())
    assert calls == bad_pass
    assert_equal(values(model), before)
    assert model[0].state() == (0.0, [0.0, 0.0], None, [])
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
    assert all(g is None or bool((g == 0.5).all()) for g in grads)
    assert_equal(opt.state_dict(), ours)
    model.zero_grad()
    train(opt, model, 1)  # and it goes on
    assert opt.steps == 1
    assert model[0].state() == (1.0, [1.0, 1.0], 1.0, [1.0] * 3)


@pytest.mark.parametrize("bad_pass", [1, 2])
def test_exceptions_in_the_backward_leave_no_trace(bad_pass):
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model)
    before = values(model)
    calls = 0

    def backward(loss):
        nonlocal calls
        calls += 1
        loss.backward()
        if calls == bad_pass:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        opt.backward(losses_of(model), *data(), backward=backward)
    assert_equal(values(model), before)
    assert all(p.grad is None for p in model.parameters())


def test_shifting_twice_is_refused_and_restored():
    @dataclass(frozen=True)
    class Twice:
        sharpness: ClassVar[str] = "always"

        def gradient(self, step: Step):
            e = ascent(step.gradient(), 0.1)
            with step.shifted(e), step.shifted(e):
                return step.gradient()

    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), Twice(), model)
    before = values(model)
    with refused(RuntimeError, "already shifted", "Leave the first `with step.shifted(...)`"):
        opt.backward(losses_of(model), *data())
    assert_equal(values(model), before)


def test_of_two_writes_to_one_place_the_first_value_comes_back():
    table = torch.zeros(4)

    class Writing:
        sharpness, passes = "never", (1.0, 1.0)

        def gradient(self, step):
            place = (torch.tensor([1]),)
            step.write(table, place, torch.tensor([1.0]))
            step.write(table, place, torch.tensor([2.0]))
            raise RuntimeError("stop")

    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), Writing(), model)
    with pytest.raises(RuntimeError, match="stop"):
        opt.backward(losses_of(model), *data())
    assert table.tolist() == [0.0] * 4
