"""What an interrupted step leaves behind: autocast, hooks, gradient mode."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ausam import SAF, SAM, FunctionalSAM, LookSAM, SharpnessAware
from ausam.optimizer.gradients import ClearDetector
from tests.helpers import data, losses_of, network


def autocast_state():
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        nesting,
    )


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("method", [SAM(0.1), LookSAM()], ids=["SAM", "LookSAM"])
def test_autocast_that_a_signal_left_on_is_switched_back(method, outside):
    """A signal may arrive when ``with torch.autocast`` has taken effect and is not yet sure to be left."""
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), method, model)

    def interrupted(x, y):
        torch.autocast("cpu", torch.float16, cache_enabled=False).__enter__()
        torch.autocast("cpu", torch.bfloat16, cache_enabled=True).__enter__()
        losses_of(model)(x, y)
        raise KeyboardInterrupt

    with torch.autocast("cpu", torch.bfloat16, enabled=outside):
        before = autocast_state()
        with pytest.raises(KeyboardInterrupt):
            opt.backward(interrupted, *data())
        assert autocast_state() == before
    assert autocast_state()[0] is False


def test_an_ordinary_step_changes_nothing_of_it():
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    with torch.autocast("cpu", torch.bfloat16):
        before = autocast_state()
        opt.backward(losses_of(model), *data())
        assert autocast_state() == before


def test_no_hook_stays_wherever_a_signal_arrives():
    model = nn.Linear(4, 3)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    lines = 0

    def closure():
        loss = losses_of(model)(*data()).mean()
        loss.backward()
        return loss

    opt.accumulate(closure)  # a gradient to add to: a detector sits in its slot
    for at in range(100):
        lines = 0

        def trace(frame, event, _, at=at):
            nonlocal lines
            if frame.f_code is not ClearDetector.__init__.__code__:
                return None if event == "call" and "ausam" not in frame.f_code.co_filename else trace
            if event == "line":
                lines += 1
                if lines == at + 1:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            opt.accumulate(closure)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert not any(p._backward_hooks for p in model.parameters()), at
        if lines <= at:
            break
    assert 10 < at < 99


@pytest.mark.parametrize(
    "method", [SAF(start=0, gap=1), FunctionalSAM(0.1), SAM(0.1)], ids=["SAF", "Functional", "SAM"]
)
def test_a_step_under_no_grad_is_an_ordinary_step(method):
    grads = []
    for context in (torch.no_grad, torch.enable_grad):
        torch.manual_seed(0)
        model = network()
        opt = SharpnessAware(SGD(model.parameters(), lr=0.1), method, model)

        def losses(x, y, model=model):
            z = model(x)
            return nn.functional.cross_entropy(z, y, reduction="none"), z

        with context():
            for _ in range(3):
                opt.zero_grad()
                opt.backward(losses, *data(), index=torch.arange(8))
                assert torch.is_grad_enabled() is (context is torch.enable_grad)
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_a_compiled_loss_function_is_treated_like_a_compiled_model():
    """Its graph may have recorded the addresses of the weights, so these are not swapped."""
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    seen = set()

    def losses(x, y):
        seen.add(model[0].weight.data_ptr())
        return losses_of(model)(x, y)

    opt.backward(losses, *data())
    assert len(seen) == 2
    losses._torchdynamo_orig_callable = losses  # as torch.compile marks it
    seen.clear()
    opt.backward(losses, *data())
    assert seen == {model[0].weight.data_ptr()}
