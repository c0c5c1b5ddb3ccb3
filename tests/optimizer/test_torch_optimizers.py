"""torch's own list of optimizers, with every setting and scheduler that its tests use, inside SharpnessAware.

What torch checks of an optimizer is checked here with SharpnessAware around it: with Plain it takes the same steps bit
for bit, and with SAM its state is saved, copied, pickled and scheduled as that of the optimizer alone.
"""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ausam import SAM, Plain, SharpnessAware
from tests.helpers import few_of, same, through_a_file

common = pytest.importorskip("torch.testing._internal.common_optimizers", reason="torch's test helpers need expecttest")

REFUSED = {"LBFGS", "SparseAdam"}  # a line search; gradients that are sparse only
INFOS = {i.optim_cls.__name__: i for i in common.optim_db if i.optim_cls.__name__ not in REFUSED}
INPUTS = {
    f"{name}-{number}-{config.desc}": (info, config.kwargs)
    for name, info in INFOS.items()
    for number, config in enumerate(
        # differentiable=True is for parameters that are no leaves, which no model has
        common._get_optim_inputs_including_global_cliquey_kwargs("cpu", torch.float32, info, skip=("differentiable",))
    )
}
X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False))  # matrices: Muon's


def settings(kwargs):
    """A copy, because torch's list shares its tensors; a learning rate that is a tensor must not be one for all."""
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}


def grouped(model, kwargs):
    """Two groups, of which the first has a learning rate of its own."""
    lr = kwargs.get("lr", 1e-3)
    own = lr.clone().mul_(2) if isinstance(lr, torch.Tensor) else 2 * lr
    return [{"params": [model[0].weight], "lr": own}, {"params": [model[2].weight]}]


def wrapped(info, kwargs, method):
    model = network()
    base = info.optim_cls(grouped(model, kwargs), **settings(kwargs))
    return model, SharpnessAware(base, method, model)


def train(model, opt, n):
    def losses(x, y):
        return F.cross_entropy(model(x), y, reduction="none")

    for _ in range(n):
        opt.zero_grad()
        opt.backward(losses, X, Y)
        opt.step()


def alone(info, kwargs, n):
    """The optimizer by itself, in a plain loop."""
    model = network()
    opt = info.optim_cls(grouped(model, kwargs), **settings(kwargs))
    for _ in range(n):
        opt.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(X), Y, reduction="none").mean())
        opt.step()
    return model, opt


FIRST = list({name.partition("-")[0]: name for name in reversed(INPUTS)}.values())  # of the settings of each optimizer


@pytest.mark.parametrize("name", INPUTS)
def test_with_plain_it_takes_the_steps_of_the_optimizer_alone(name):
    info, kwargs = INPUTS[name]
    model, opt = wrapped(info, kwargs, Plain())
    train(model, opt, 3)
    expected, base = alone(info, kwargs, 3)
    assert same(model.state_dict(), expected.state_dict())
    assert same(opt.base.state_dict(), base.state_dict())
    assert not same(model.state_dict(), network().state_dict()) or kwargs.get("lr") == 0


@pytest.mark.parametrize("name", few_of(INPUTS, *FIRST))
def test_a_saved_copied_or_pickled_state_trains_on_alike(name):
    info, kwargs = INPUTS[name]
    model, opt = wrapped(info, kwargs, SAM(0.1))
    train(model, opt, 2)
    copies = [copy.deepcopy((model, opt)), pickle.loads(pickle.dumps((model, opt)))]
    again, fresh = wrapped(info, kwargs, SAM(0.1))
    again.load_state_dict(model.state_dict())
    fresh.load_state_dict(through_a_file(opt.state_dict()))
    train(model, opt, 2)
    for copied, its in [*copies, (again, fresh)]:
        train(copied, its, 2)
        assert same(copied.state_dict(), model.state_dict())
        assert same(its.state_dict(), opt.state_dict())


@pytest.mark.parametrize("name", INFOS)
def test_the_plain_optimizer_loads_our_state_and_we_load_its(name):
    info, kwargs = INFOS[name], {}
    model, opt = wrapped(info, kwargs, Plain())
    train(model, opt, 2)
    plain, base = alone(info, kwargs, 0)
    base.load_state_dict(through_a_file(opt.state_dict()))
    assert same(base.state_dict()["state"], opt.base.state_dict()["state"])
    plain, base = alone(info, kwargs, 2)
    again, fresh = wrapped(info, kwargs, Plain())
    again.load_state_dict(plain.state_dict())
    fresh.load_state_dict(through_a_file(base.state_dict()))
    train(model, opt, 1)
    train(again, fresh, 1)
    assert same(again.state_dict(), model.state_dict())


@pytest.mark.parametrize(
    ("name", "number"), [(name, i) for name, info in INFOS.items() for i in range(len(info.scheduler_inputs))]
)
def test_schedulers_set_the_rates_of_the_optimizer(name, number):
    info = INFOS[name]
    model, opt = wrapped(info, {}, SAM(0.1))
    _, base = alone(info, {}, 0)
    ours, theirs = ([make(o) for make in info.scheduler_inputs[number]] for o in (opt, base))
    for _ in range(12):
        train(model, opt, 1)
        base.step()
        for s in (*ours, *theirs):
            if isinstance(s, torch.optim.lr_scheduler.ReduceLROnPlateau):
                s.step(1.0)
            else:
                s.step()
        assert [g["lr"] for g in opt.param_groups] == [g["lr"] for g in base.param_groups]


def takes_new_groups(kind):
    """Whether torch's own optimizer can step after it got a new group: Adagrad of torch 2.6 cannot."""
    old, new = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    base = kind([old])
    base.add_param_group({"params": [new]})
    old.grad = new.grad = torch.ones(2, 2)
    try:
        base.step()
    except KeyError:
        return False
    return True


@pytest.mark.parametrize("name", INFOS)
def test_groups_are_added_and_gradients_cleared_through_it(name):
    info = INFOS[name]
    if not takes_new_groups(info.optim_cls):
        pytest.skip(f"torch's own {name} cannot take a new group")
    model = network()
    opt = SharpnessAware(info.optim_cls([model[0].weight]), SAM(0.1), model)
    opt.add_param_group({"params": [model[2].weight], "lr": 0.5})
    assert opt.base.param_groups[1]["lr"] == 0.5
    before = model[2].weight.clone()
    train(model, opt, 1)
    assert not torch.equal(model[2].weight, before)
    opt.zero_grad(set_to_none=False)
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in model.parameters())
    opt.zero_grad()
    assert all(p.grad is None for p in model.parameters())
