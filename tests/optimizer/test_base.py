"""What is the base's own: groups, state, defaults, hooks, and schedulers that act on them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ausam import ASAM, SAM, SharpnessAware
from tests.helpers import assert_equal, data, losses_of, network, train, values


def test_groups_state_defaults_and_hooks_are_the_bases():
    model = network()
    base = SGD(model.parameters(), lr=0.1)
    opt = SharpnessAware(base, SAM(0.1), model)
    assert isinstance(opt, torch.optim.Optimizer)
    assert opt.param_groups is base.param_groups
    assert opt.state is base.state
    assert opt.defaults is base.defaults
    assert repr(opt).startswith(f"SharpnessAware(SGD, {SAM(0.1)!r}, ")
    assert "0 steps" in repr(opt)
    assert "\n" not in repr(opt)
    groups, state, defaults = base.param_groups[:], dict(base.state), dict(base.defaults)
    opt.param_groups, opt.state, opt.defaults = groups, state, defaults
    assert (base.param_groups is groups, base.state is state, base.defaults is defaults) == (True, True, True)
    with pytest.raises(AttributeError, match="no_such_thing"):
        opt.no_such_thing  # noqa: B018


def test_step_hooks_run_once_a_step():
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    calls = []
    handle = opt.register_step_post_hook(lambda *_: calls.append("post"))
    opt.register_step_pre_hook(lambda *_: calls.append("pre"))
    train(opt, model, 2)
    assert calls == ["pre", "post"] * 2
    handle.remove()
    train(opt, model, 1)
    assert calls == ["pre", "post"] * 2 + ["pre"]


def test_schedulers_act_after_load_state_dict():
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=1.0), SAM(0.1), model)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.5)
    opt.load_state_dict(opt.state_dict())
    train(opt, model, 1)
    scheduler.step()
    assert opt.param_groups is opt.base.param_groups
    assert [g["lr"] for g in opt.base.param_groups] == [0.5]
    before = values(model)
    opt.backward(losses_of(model), *data(7))
    grads = [p.grad.clone() for p in model.parameters()]
    opt.step()
    for (name, p), g in zip(model.named_parameters(), grads, strict=True):
        torch.testing.assert_close(p, before[name] - 0.5 * g)


def test_each_group_scales_the_common_direction_by_its_own_rho():
    model = network(batchnorm=False, dtype=torch.float64)
    x, y = data(dtype=torch.float64)
    groups = [{"params": list(model[0].parameters()), "rho": 0.4}, {"params": list(model[2].parameters())}]
    opt = SharpnessAware(SGD(groups, lr=0.1), SAM(0.1), model)
    seen = []

    def loss_fn(x, y):
        seen.append([p.detach().clone() for p in model.parameters()])
        return losses_of(model)(x, y)

    opt.backward(loss_fn, x, y)
    g = torch.autograd.grad(losses_of(model)(x, y).mean(), list(model.parameters()))
    length = torch.cat([gi.flatten() for gi in g]).norm()
    for here, there, gi, rho in zip(*seen, g, (0.4, 0.4, 0.1, 0.1), strict=True):
        torch.testing.assert_close(there - here, rho * gi / length, rtol=0, atol=1e-12)


def test_another_model_takes_over_where_a_framework_wraps_it():
    """Accelerate and Lightning wrap the model after the optimizer was built: buffers and names are the new one's."""
    inner = network()
    opt = SharpnessAware(SGD(inner.parameters(), lr=0.1), ASAM(0.5), network(seed=1))
    wrapped = nn.Sequential(inner)
    opt.model = wrapped
    assert opt.model is wrapped
    twin = network()
    expected = SharpnessAware(SGD(twin.parameters(), lr=0.1), ASAM(0.5), twin)
    train(opt, wrapped, 2)
    train(expected, twin, 2)
    assert_equal(values(inner), values(twin))
    assert int(inner[1].num_batches_tracked) == 2
