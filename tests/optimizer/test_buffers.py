"""Buffers: which pass moves them, and unusual kinds: views, tensors of inference mode, lazy modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ausam import METHODS, SAM, SharpnessAware
from tests.helpers import data, losses_of, make, network, train, with_logits
from tests.optimizer.parts import Counting

X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])


class Odd(nn.Module):
    """BatchNorm beside buffers that nobody can write."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.register_buffer("expanded", torch.ones(1).expand(5))
        with torch.inference_mode():
            self.register_buffer("inferred", torch.full((5,), 2.0))
        self.register_buffer("nothing", None)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.count += 1
        return self.last(self.norm(self.first(x)) * self.expanded)


def three_steps(model, method):
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), method, model)
    for _ in range(3):
        opt.backward(with_logits(model), X, Y, index=torch.arange(6))
        opt.step()
        opt.zero_grad()


@pytest.mark.parametrize("name", METHODS)
def test_buffers_that_cannot_be_written_are_left_alone(name):
    torch.manual_seed(0)
    model = Odd()
    three_steps(model, make(name))
    assert int(model.count) == int(model.norm.num_batches_tracked) == 3
    assert model.expanded.tolist() == [1.0] * 5
    assert model.inferred.tolist() == [2.0] * 5


def test_a_single_sample_and_batchnorm_name_the_remedy():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel") as error:
        opt.backward(losses_of(model), X[:1], Y[:1])
    assert any("min_batch=2" in note for note in error.value.__notes__)
    with pytest.raises(ValueError, match="something else") as error:
        opt.backward(lambda x, y: (_ for _ in ()).throw(ValueError("something else")), X, Y)
    assert not hasattr(error.value, "__notes__")


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batchnorm_moves_at_w_with_any_momentum(momentum):
    model = network(dtype=torch.float64)
    model[1].momentum = momentum
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.5), model)
    means = []
    for step in range(3):
        x, y = data(step, dtype=torch.float64)
        means.append(model[0](x).mean(0).detach())
        opt.backward(losses_of(model), x, y)
        opt.step()
        opt.zero_grad()
    assert int(model[1].num_batches_tracked) == 3
    assert model[1].momentum == momentum
    a, b, c = means
    expected = (a + b + c) / 3 if momentum is None else 0.081 * a + 0.09 * b + 0.1 * c
    torch.testing.assert_close(model[1].running_mean, expected)


@pytest.mark.parametrize(
    ("passes", "moved_by"),
    [
        (["here", "here"], 0),
        (["look", "here"], 1),
        (["here", "look", "shifted", "here"], 0),
        (["shifted", "here"], 1),  # a pass at w counts, even if it comes late
        (["shifted", "look", "shifted"], 0),  # none at w: the first
    ],
    ids=str,
)
def test_whatever_the_passes_one_moves_the_buffers(passes, moved_by):
    @dataclass(frozen=True)
    class Passes:
        sharpness: ClassVar[str] = "sometimes"

        def gradient(self, step):
            for kind in passes:
                if kind == "look":
                    step.forward(grad=False)
                elif kind == "here":
                    g = step.gradient()
                else:
                    with step.shifted([torch.ones_like(p) for p in step.params]):
                        g = step.gradient()
            return g

    model = network(dtype=torch.float64)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), Passes(), model)
    x, y = data(dtype=torch.float64)
    means = []

    def loss_fn(x, y):
        means.append(model[0](x).mean(0).detach())
        return losses_of(model)(x, y)

    opt.backward(loss_fn, x, y)
    assert len(means) == len(passes)
    assert int(model[1].num_batches_tracked) == 1
    torch.testing.assert_close(model[1].running_mean, 0.1 * means[moved_by])


def test_buffers_of_every_kind_move_once():
    model = Counting()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    train(opt, model, 3)
    assert model.state() == (3.0, [3.0, 3.0], 3.0, [3.0] * 3)


def test_a_first_child_or_buffer_of_a_module_is_guarded_from_the_next_step_on():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.rest = nn.Linear(4, 3), nn.Sequential()

        def forward(self, x):
            if self.training and "count" in self.first._buffers:
                self.first.count += 1
            return self.rest(self.first(x))

    model = Late()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.05), SAM(0.1), model)
    train(opt, model, 1)
    model.rest.append(nn.BatchNorm1d(3, affine=False))
    model.first.register_buffer("count", torch.zeros(()))
    train(opt, model, 2)
    assert int(model.rest[0].num_batches_tracked) == int(model.first.count) == 2
