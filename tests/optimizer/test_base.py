"""What is the base's own: groups, state, defaults, hooks, and schedulers that act on them."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from ausam import ASAM, SAM, Plain, SharpnessAware
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


def test_add_param_group():
    model = network()
    opt = SharpnessAware(SGD(model[0].parameters(), lr=0.1, momentum=0.5), SAM(0.1), model)
    opt.add_param_group({"params": list(model[3].parameters()), "lr": 0.01})
    assert [g["lr"] for g in opt.base.param_groups] == [0.1, 0.01]
    assert opt.base.param_groups[1]["momentum"] == 0.5
    before = values(model)
    opt.backward(losses_of(model), *data())
    grad = model[3].weight.grad.clone()
    opt.step()
    torch.testing.assert_close(model[3].weight, before["3.weight"] - 0.01 * grad)


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


def test_state_dict_hooks_run():
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    calls = []
    opt.register_state_dict_pre_hook(lambda *_: calls.append("save"))
    opt.register_load_state_dict_post_hook(lambda *_: calls.append("load"))
    opt.load_state_dict(opt.state_dict())
    assert calls == ["save", "load"]


def test_zero_grad():
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    opt.backward(losses_of(model), *data())
    opt.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    opt.zero_grad()
    assert all(p.grad is None for p in model.parameters())


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


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=9),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=9),
        lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0),
    ],
    ids=["onecycle", "cosine", "plateau"],
)
def test_schedulers_see_the_wrapper_as_they_see_the_base(schedule):
    rates = []
    for wrap in (False, True):
        model = network()
        base = SGD(model.parameters(), lr=0.1, momentum=0.9)
        opt = SharpnessAware(base, Plain(), model) if wrap else base
        scheduler = schedule(opt)
        seen = []
        for _ in range(5):
            opt.step()
            scheduler.step(*([1.0] if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))
            seen.append((opt.param_groups[0]["lr"], opt.param_groups[0]["momentum"]))
        rates.append(seen)
    assert rates[0] == rates[1]


def test_no_warning_in_an_ordinary_loop():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = network()
        opt = SharpnessAware(Adam(model.parameters()), SAM(0.1), model)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 3)
        for step in range(3):
            train(opt, model, 1, first=step)
            scheduler.step()
    assert opt.param_groups[0]["lr"] == pytest.approx(0.0)


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


def test_a_parameter_that_is_listed_twice_is_not_counted_twice():
    grads = []
    for twice in (False, True):
        model = network()
        params = list(model.parameters())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of duplicates
            base = SGD([*params, params[0]] if twice else params, lr=0.1)
        SharpnessAware(base, SAM(0.1), model).backward(losses_of(model), *data())
        grads.append([p.grad for p in params])
    assert_equal(*grads)


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
