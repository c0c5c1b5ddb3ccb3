"""The .grad slots: what was there before a step, sparse or dense, and what a step adds to it."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from ausam.optimizer.gradients import GradientSlots


def deposit(slots, gradient):
    """As a step does at its end."""
    held, new = slots.deposit(gradient)
    if held:
        torch._foreach_add_(held, new)


def gradient(kind):
    dense = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    return {"none": None, "dense": dense, "sparse": dense.to_sparse(1)}[kind]


def test_a_gradient_is_added_to_what_was_there():
    kinds = ("none", "dense", "sparse")
    for how, kept, new in itertools.product(("deposit", "total"), kinds, kinds):
        if (kept, new) != ("sparse", "dense"):  # torch cannot add these
            assert_added(how, kept, new)


def assert_added(how, kept, new):
    p = nn.Parameter(torch.zeros(2, 2))
    p.grad = gradient(kept)
    slots = GradientSlots([p], [], [])
    assert p.grad is None
    if how == "deposit":
        deposit(slots, [gradient(new)])
        result = p.grad
    else:
        (result,) = slots.total([gradient(new)])
    parts = (kept != "none") + (new != "none")
    if not parts:
        assert result is None
    else:
        assert torch.equal(result.to_dense(), parts * gradient("dense"))


def test_what_was_there_is_added_to_in_its_own_memory():
    """As loss.backward() does: who holds .grad sees the sum."""
    p = nn.Parameter(torch.zeros(2, 2))
    p.grad = held = gradient("dense")
    slots = GradientSlots([p], [], [])
    deposit(slots, [torch.ones(2, 2)])
    assert p.grad is held
    assert torch.equal(held, gradient("dense") + 1)
