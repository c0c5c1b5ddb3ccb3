"""``reduce="sum"``, weights given as a list, and arguments that carry a graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ausam import AESAM, ESAM, SAM, SharpnessAware
from tests.helpers import data, losses_of, network


def gradient(method, n=8, **kwargs):
    torch.manual_seed(0)
    model = network()
    x, y = data(n=n)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), method, model)
    opt.backward(losses_of(model), x, y, **kwargs)
    return opt, [p.grad for p in model.parameters() if p.grad is not None], len(x)


@pytest.mark.parametrize("method", [SAM(0.1), SAM(0.1, m=4), SAM(0.1, ascent=0.5), ESAM(0.1)], ids=repr)
def test_the_gradient_of_the_sum_is_n_times_that_of_the_mean(method):
    _, mean, n = gradient(method)
    _, total, _ = gradient(method, reduce="sum")
    for a, b in zip(mean, total, strict=True):
        torch.testing.assert_close(b, n * a, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scaled", [False, True])
def test_what_a_method_remembers_does_not_depend_on_the_reduction(scaled):
    kwargs = {"backward": lambda loss: (64 * loss).backward()} if scaled else {}
    mean, _, _ = gradient(AESAM(total_steps=9), **kwargs)
    total, _, _ = gradient(AESAM(total_steps=9), reduce="sum", **kwargs)
    assert total._memory.values["mean"] == pytest.approx(mean._memory.values["mean"], rel=1e-4)


def test_another_reduction_is_refused():
    with pytest.raises(ValueError, match='"mean" or "sum"'):
        gradient(SAM(0.1), reduce="none")


def test_weights_may_be_a_list():
    _, listed, _ = gradient(SAM(0.1), weight=[0.5] * 8)
    _, tensor, _ = gradient(SAM(0.1), weight=torch.full((8,), 0.5))
    assert all(torch.equal(a, b) for a, b in zip(listed, tensor, strict=True))
    with pytest.raises(TypeError, match="one number per sample"):
        gradient(SAM(0.1), weight=["a"] * 8)


@pytest.mark.parametrize("nested", [False, True])
def test_a_graph_from_outside_the_loss_function_is_refused(nested):
    """Storage is swapped, so torch's own check of versions would not notice that the weights were elsewhere."""
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 3)
    both = nn.Sequential(encoder, head)
    opt = SharpnessAware(SGD(both.parameters(), lr=0.1), SAM(1.0), both)
    z = encoder(torch.randn(8, 4))
    batch = ({"z": z},) if nested else (z,)
    losses = lambda z: head(z["z"] if nested else z).square().sum(1)  # noqa: E731
    with pytest.raises(ValueError, match="grad_fn") as error:
        opt.backward(losses, *batch, backward=lambda loss: loss.backward(retain_graph=True))
    assert "detach()" in str(error.value)
    opt.backward(losses, *({"z": z.detach()} if nested else z.detach(),))
