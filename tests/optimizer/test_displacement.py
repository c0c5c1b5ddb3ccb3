"""Where the weights may be moved by swapping their storage, and that copying gives the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ausam.optimizer.displacement import Displacement, Swappable
from tests.helpers import assert_equal, network, values


class Special(nn.Parameter):
    """A tensor of a class that we know nothing of."""


def compiled(model):
    model.compile(backend="eager")
    return model


def compiled_outside(model):
    return torch.compile(model, backend="eager")


def part_of_a_larger_storage(model):
    model[0].bias = nn.Parameter(torch.zeros(9)[:6])
    return model


def two_in_one_storage(model):
    flat = torch.zeros(24)
    model[0].weight, model[3].weight = nn.Parameter(flat.view(6, 4)), nn.Parameter(flat[:18].view(3, 6))
    return model


def of_another_class(model):
    model[0].bias = Special(torch.zeros(6))
    return model


@pytest.mark.parametrize(
    "change", [compiled, compiled_outside, part_of_a_larger_storage, two_in_one_storage, of_another_class]
)
def test_what_a_swap_would_be_felt_by_is_copied(change):
    model = change(network())
    assert Swappable(model)(list(model.parameters())) is False


def test_a_model_that_is_compiled_later_or_whose_weights_move_is_looked_at_again():
    model = network()
    swappable = Swappable(model)
    params = list(model.parameters())
    assert swappable(params)
    params[0].data = torch.zeros(30)[:24].view(6, 4)
    assert not swappable(params)
    params[0].data = torch.zeros(6, 4)
    assert swappable(params)
    model.compile(backend="eager")
    assert not swappable(params)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("relative", [False, True])
def test_the_weights_are_elsewhere_inside_and_back_outside(relative, swap):
    model = network()
    params, before = list(model.parameters()), values(model)
    addresses = [p.data_ptr() for p in params]
    where = [None, *(torch.full_like(p, 2.0) for p in params[1:])]  # the first stays
    displacement = Displacement(params, where, [], [], relative=relative, swap=swap)
    assert not displacement.active
    with displacement:
        assert displacement.active
        for (name, p), value in zip(model.named_parameters(), where, strict=True):
            there = before[name] if value is None else before[name] + 2.0 if relative else torch.full_like(p, 2.0)
            assert torch.equal(p, there)
    assert not displacement.active
    assert_equal(values(model), before)
    assert [p.data_ptr() for p in params] == addresses


def test_a_swap_uses_the_memory_of_the_distance_where_it_fits():
    model = network()
    params = list(model.parameters())
    e = [torch.ones_like(p) for p in params]
    addresses = [t.data_ptr() for t in e]
    with Displacement(params, e, [], [], relative=True, swap=True):
        assert [p.data_ptr() for p in params] == addresses
    e = [torch.ones_like(p, dtype=torch.float64) for p in params]
    with Displacement(params, e, [], [], relative=True, swap=True):
        assert {p.dtype for p in params} == {torch.float32}


def test_memory_that_a_frozen_layer_shares_moves_too():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.decode.weight.data = self.encode.weight.data
            self.decode.weight.requires_grad_(False)

    model = Tied()
    assert not Swappable(model)([model.encode.weight])
    model.decode.weight.data = model.encode.weight.data.clone()
    assert Swappable(model)([model.encode.weight])
