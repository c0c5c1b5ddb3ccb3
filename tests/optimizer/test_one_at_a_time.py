"""One optimizer, one step at a time: nested calls and a second thread are refused, and change nothing."""

from __future__ import annotations

import copy

import pytest
import torch

from ausam import METHODS
from tests.helpers import few_of, make, network, optimizer, with_logits

X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])


def trained(method):
    model = network()
    opt, losses = optimizer(model, method), with_logits(model)
    for _ in range(2):
        opt.backward(losses, X, Y, index=torch.arange(6))
        opt.step()
        opt.zero_grad()
    return model, opt, losses


@pytest.mark.parametrize("inner", few_of(["backward", "step", "step(closure)"], "backward"))
@pytest.mark.parametrize("name", METHODS)
def test_a_call_inside_the_loss_function_is_refused(name, inner):
    model, opt, losses = trained(make(name))
    before = copy.deepcopy((model.state_dict(), opt.base.state_dict()))

    def nested(x, y):
        if inner == "backward":
            opt.backward(losses, x, y, index=torch.arange(6))
        elif inner == "step":
            opt.step()
        else:
            opt.step(lambda: losses(x, y)[0].mean())
        return losses(x, y)

    with pytest.raises(RuntimeError, match="Let the loss function compute the losses only"):
        opt.backward(nested, X, Y, index=torch.arange(6))
    torch.testing.assert_close((model.state_dict(), opt.base.state_dict()), before, rtol=0, atol=0)
    assert all(p.grad is None for p in model.parameters())
    opt.backward(losses, X, Y, index=torch.arange(6))  # and it works again
    opt.step()
