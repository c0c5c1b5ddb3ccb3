"""The rules of SharpnessAware, and the traps that wrappers of optimizers have fallen into."""

import copy
import io
import pickle
import warnings
from collections import namedtuple
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional

from ausam import ASAM, SAM, AUSampling, Feedback, Plain, SharpnessAware, check
from ausam.step import Step
from ausam.tensors import ascent, norm

SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


def network(seed=0, batchnorm=True, dtype=torch.float32):
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(6)] if batchnorm else []
    return nn.Sequential(nn.Linear(4, 6), *middle, nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def data(seed=0, n=8, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=rng, dtype=dtype), torch.randint(3, (n,), generator=rng)


def losses_of(model):
    return lambda x, y: functional.cross_entropy(model(x), y, reduction="none")


def train(opt, model, steps, first=0):
    for step in range(first, first + steps):
        opt.backward(losses_of(model), *data(step))
        opt.step()
        opt.zero_grad()


def values(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def assert_equal(a, b):
    """Bit for bit, tensors in nested dicts and lists too."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for k in a:
            assert_equal(a[k], b[k])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    else:
        assert a == b


@dataclass(frozen=True)
class Remembering:
    """SAM that also keeps a running sum of gradients: a method with memory."""

    rho: float = 0.1
    sharpness: ClassVar[str] = "always"
    passes: ClassVar[tuple[float, float]] = (2.0, 2.0)

    def gradient(self, step):
        g = step.gradient(sync=False)
        old = step.state.get("sum", [torch.zeros_like(p) for p in step.params])
        step.state["sum"] = [o if gi is None else o + gi for o, gi in zip(old, g, strict=True)]
        step.state["visits"] = step.state.get("visits", 0) + 1
        with step.shifted(ascent(g, self.rho)):
            return step.gradient()


BASES = {
    "sgd": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: AdamW(p, lr=0.01),
}


# -- checkpoints (traps 1, 2, 4, 5) ------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
@pytest.mark.parametrize("method", [Plain(), SAM(0.1), Remembering()], ids=lambda m: type(m).__name__)
def test_resume_bit_for_bit(base, method):
    model = network()
    opt = SharpnessAware(base(model.parameters()), method, model)
    train(opt, model, 3)
    file = io.BytesIO()
    torch.save({"opt": opt.state_dict(), "model": model.state_dict()}, file)
    train(opt, model, 4, first=3)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = network(seed=9)
    resumed.load_state_dict(saved["model"])
    again = SharpnessAware(base(resumed.parameters()), method, resumed)
    again.load_state_dict(saved["opt"])
    assert (again.steps, again.samples_forward) == (3, saved["opt"]["ausam"]["samples_forward"])
    train(again, resumed, 4, first=3)
    assert_equal(values(resumed), values(model))
    assert_equal(again.state_dict(), opt.state_dict())


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_a_plain_optimizer_loads_our_state_and_we_load_its(base):
    model = network()
    opt = SharpnessAware(base(model.parameters()), SAM(0.1), model)
    train(opt, model, 3)
    theirs = base(model.parameters())
    theirs.load_state_dict(copy.deepcopy(opt.state_dict()))  # torch shares the tensors otherwise
    assert_equal(theirs.state_dict()["state"], opt.base.state_dict()["state"])
    moments = {"momentum_buffer"} if base is BASES["sgd"] else {"step", "exp_avg", "exp_avg_sq"}
    assert set(theirs.state_dict()["state"][0]) == moments  # and nothing of ours

    back = SharpnessAware(base(model.parameters()), SAM(0.1), model)
    back.load_state_dict(copy.deepcopy(theirs.state_dict()))
    assert_equal(back.state_dict()["state"], opt.state_dict()["state"])
    assert (back.steps, back.skipped) == (0, 0)
    x, y = data(5)
    for o in (back, opt):
        o.zero_grad()
        o.backward(losses_of(model), x, y)
    before = values(model)
    opt.step()
    after = values(model)
    model.load_state_dict(before)
    back.step()
    assert_equal(values(model), after)


def test_state_dict_is_the_bases_plus_one_key():
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model)
    train(opt, model, 2)
    ours = opt.state_dict()
    own = ours.pop("ausam")
    assert_equal(ours, opt.base.state_dict())
    assert own["steps"] == 2
    assert own["method"] == "SAM"
    assert own["samples_forward"] == own["samples_backward"] == 2 * 8 * 2


def test_another_methods_state_starts_the_method_afresh():
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), Remembering(), model)
    train(opt, model, 2)
    other = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model)
    with pytest.warns(UserWarning, match="saved with Remembering and is loaded into SAM") as caught:
        other.load_state_dict(opt.state_dict())
    assert caught[0].filename == __file__
    assert_equal(other.base.state_dict(), opt.base.state_dict())
    assert other.state_dict()["ausam"]["memory"] == {"values": {}, "owners": None}


def test_saved_memory_is_not_shared_with_the_run_that_loads_it():
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), Remembering(), model)
    train(opt, model, 1)
    state = opt.state_dict()
    again = SharpnessAware(BASES["sgd"](model.parameters()), Remembering(), model)
    again.load_state_dict(state)
    for mine, theirs in zip(again._memory.values["sum"], state["ausam"]["memory"]["values"]["sum"], strict=True):
        assert mine.data_ptr() != theirs.data_ptr()


def test_adamw_state_holds_nothing_of_ours():
    # Trap 1: AdamW initialises when len(state) == 0, so a foreign key would break it.
    model = network()
    opt = SharpnessAware(AdamW(model.parameters()), Remembering(), model)
    opt.backward(losses_of(model), *data())
    assert all(len(opt.base.state[p]) == 0 for p in model.parameters())
    opt.step()
    assert all(set(opt.base.state[p]) == {"step", "exp_avg", "exp_avg_sq"} for p in model.parameters())


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["deepcopy", "pickle"]
)
def test_copies_go_on_alike(how, scheduled):
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), Remembering(), model, nonfinite="raise", seed=4)
    if scheduled:
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 1)
        train(opt, model, 2)
        scheduler.step()
    else:
        train(opt, model, 2)
    model2, opt2 = how((model, opt))
    assert opt2.model is model2
    assert opt2.base is not opt.base
    assert [id(p) for g in opt2.param_groups for p in g["params"]] == [id(p) for p in model2.parameters()]
    assert (opt2.nonfinite, opt2.seed) == ("raise", 4)
    before = values(model)
    train(opt2, model2, 3, first=2)
    assert_equal(values(model), before)  # the copy moves itself alone
    train(opt, model, 3, first=2)
    assert_equal(values(model2), values(model))
    assert_equal(opt2.state_dict(), opt.state_dict())


def test_deepcopy_of_the_optimizer_alone_trains_its_own_model():
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model)
    other = copy.deepcopy(opt)
    train(other, other.model, 1)
    train(opt, model, 1)
    assert_equal(values(other.model), values(model))


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


# -- the base's own ----------------------------------------------------------------------------------------------------


def test_groups_state_defaults_and_hooks_are_the_bases():
    model = network()
    base = SGD(model.parameters(), lr=0.1)
    opt = SharpnessAware(base, SAM(0.1), model)
    assert isinstance(opt, torch.optim.Optimizer)
    assert opt.param_groups is base.param_groups
    assert opt.state is base.state
    assert opt.defaults is base.defaults
    assert repr(opt).startswith("SharpnessAware(SGD (")
    assert repr(opt).endswith("SAM(rho=0.1))")
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


# -- the gradient ------------------------------------------------------------------------------------------------------


def test_accumulation_is_the_sum():
    model = network(batchnorm=False, dtype=torch.float64)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    parts = []
    for seed in (0, 1):
        opt.backward(losses_of(model), *data(seed, dtype=torch.float64))
        parts.append([p.grad.clone() for p in model.parameters()])
        opt.zero_grad()
    for seed in (0, 1):
        opt.backward(losses_of(model), *data(seed, dtype=torch.float64))
    for p, a, b in zip(model.parameters(), *parts, strict=True):
        torch.testing.assert_close(p.grad, a + b, rtol=0, atol=0)
    assert not torch.equal(parts[0][0], parts[1][0])


def test_a_gradient_that_was_there_does_not_bend_the_perturbation():
    model = network(batchnorm=False)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    opt.backward(losses_of(model), *data())
    alone = [p.grad.clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.full_like(p, 100.0)
    opt.backward(losses_of(model), *data())
    for p, g in zip(model.parameters(), alone, strict=True):
        torch.testing.assert_close(p.grad, g + 100.0, rtol=0, atol=0)


class Branches(nn.Module):
    """``used`` in every pass; ``first`` in odd forwards only; ``unused`` never; ``frozen`` used but not trained."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.used, self.first, self.unused, self.frozen = (nn.Linear(4, 3) for _ in range(4))
        self.frozen.requires_grad_(False)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        z = self.used(x) + self.frozen(x)
        return z + self.first(x) if self.calls % 2 else z


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_unused_and_frozen_parameters_keep_grad_none_and_do_not_move(base):
    model = Branches()
    opt = SharpnessAware(base(model.parameters()), SAM(0.5), model)
    before = values(model)
    for step in range(3):
        opt.backward(losses_of(model), *data(step))
        assert all(p.grad is None for m in (model.unused, model.frozen) for p in m.parameters())
        assert all(p.grad is not None for p in model.used.parameters())
        opt.step()
    after = values(model)
    for name in before:
        assert torch.equal(before[name], after[name]) == (not name.startswith("used")), name


def test_a_parameter_reached_in_pass_1_only_comes_back():
    # Trap 6: it has no gradient when the weights are restored, but it was moved.
    model = Branches()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1, weight_decay=0.1), SAM(0.5), model)
    before = values(model)
    opt.backward(losses_of(model), *data())
    assert_equal(values(model), before)
    assert all(p.grad is None for p in model.first.parameters())


def test_weights_come_back_bit_for_bit():
    # Trap 3: w + e - e is not w. Enough entries that it would show.
    torch.manual_seed(0)
    model = nn.Linear(200, 50)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.37), model)
    before = values(model)
    pointers = [p.data_ptr() for p in model.parameters()]
    seen = []

    def loss_fn(x):
        seen.append(model.weight.detach().clone())
        return model(x).square().mean(1)

    opt.backward(loss_fn, torch.randn(16, 200))
    assert_equal(values(model), before)
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert torch.equal(seen[0], before["weight"])
    e = seen[1] - seen[0]
    assert not torch.equal(seen[1] - e, before["weight"])  # subtracting would not have done
    assert 0.2 < float(e.norm()) < 0.371


def test_parameters_of_another_optimizer_get_the_last_pass_alone():
    model = network(batchnorm=False, dtype=torch.float64)
    x, y = data(dtype=torch.float64)
    head = list(model[2].parameters())
    opt = SharpnessAware(SGD(model[0].parameters(), lr=0.1), SAM(0.2), model)
    head[0].grad = torch.ones_like(head[0])
    head_before = values(model[2])
    opt.backward(losses_of(model), x, y)

    twin = network(batchnorm=False, dtype=torch.float64)
    body = list(twin[0].parameters())
    g = torch.autograd.grad(losses_of(twin)(x, y).mean(), body)
    length = torch.cat([gi.flatten() for gi in g]).norm()
    with torch.no_grad():
        for p, gi in zip(body, g, strict=True):
            p += 0.2 * gi / length
    expected = torch.autograd.grad(losses_of(twin)(x, y).mean(), list(twin.parameters()))
    for p, gi in zip(model[0].parameters(), expected[:2], strict=True):
        torch.testing.assert_close(p.grad, gi)
    torch.testing.assert_close(head[0].grad, 1.0 + expected[2])
    torch.testing.assert_close(head[1].grad, expected[3])
    assert_equal(values(model[2]), head_before)


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


@pytest.mark.parametrize("method", [SAM(0.0), SAM(0.1), ASAM(0.5)], ids=["rho0", "sam", "asam"])
def test_zero_gradients_do_no_harm(method):
    model = network(batchnorm=False)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), method, model)
    before = values(model)
    opt.backward(lambda x: 0.0 * model(x).sum(1), data()[0])
    opt.step()
    assert_equal(values(model), before)
    assert opt.skipped == 0


@pytest.mark.parametrize(
    "types",
    [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float64)],
    ids=str,
)
def test_the_norm_of_mixed_precisions(types):
    vector = [torch.full((5,), 1.5, dtype=t) for t in types]
    assert float(norm(vector)) == pytest.approx(1.5 * 10**0.5, rel=1e-6)  # at least float32, whatever comes first
    e = ascent(vector, 0.1)
    assert [t.dtype for t in e] == list(types)


def test_dict_batches():
    model = network()
    x, y = data()
    torch.manual_seed(3)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    opt.backward(losses_of(model), x, y)
    expected = [p.grad for p in model.parameters()]
    opt.zero_grad()
    feedback = opt.backward(
        lambda batch: functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none"),
        {"x": x, "y": y, "text": ["a"] * 8},
        index=list(range(8)),
    )
    for p, g in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=0, atol=0)
    assert feedback.index.tolist() == list(range(8))


def test_rows_are_taken_from_every_part_of_the_batch():
    Pair = namedtuple("Pair", "x y")
    given = []

    @dataclass(frozen=True)
    class Half:
        sharpness: ClassVar[str] = "sometimes"

        def gradient(self, step):
            step.forward(grad=False)
            return step.gradient(torch.tensor([1, 3]))

    model = network(batchnorm=False)
    x, y = data(n=4)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), Half(), model)

    def loss_fn(pair, extra, scale):
        given.append((pair, extra, scale))
        return scale * losses_of(model)(pair.x, pair.y)

    opt.backward(loss_fn, Pair(x, y), {"more": [x, "name"]}, 2.0, weight=torch.tensor([1.0, 3.0, 1.0, 5.0]))
    pair, extra, scale = given[1]
    assert torch.equal(pair.x, x[[1, 3]])
    assert torch.equal(pair.y, y[[1, 3]])
    assert torch.equal(extra["more"][0], x[[1, 3]])
    assert (extra["more"][1], scale) == ("name", 2.0)
    losses = 2.0 * losses_of(model)(x, y)
    expected = torch.autograd.grad((3.0 * losses[1] + 5.0 * losses[3]) / 2, list(model.parameters()))
    for p, g in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, g)
    assert (opt.samples_forward, opt.samples_backward) == (6, 2)


# -- torch's closure ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "runs"), [(Plain(), 1), (SAM(0.1), 2), (ASAM(0.5), 2)], ids=["plain", "sam", "asam"]
)
@pytest.mark.parametrize("to_none", [True, False])
def test_closure_equals_backward_and_step(method, runs, to_none):
    ours, theirs = network(), network()
    a = SharpnessAware(BASES["sgd"](ours.parameters()), method, ours)
    b = SharpnessAware(BASES["sgd"](theirs.parameters()), method, theirs)
    calls = 0
    for step in range(3):
        x, y = data(step)
        with torch.no_grad():
            clean = functional.cross_entropy(copy.deepcopy(theirs)(x), y)
        feedback = a.backward(losses_of(ours), x, y)
        a.step()
        a.zero_grad()

        def closure(x=x, y=y):
            nonlocal calls
            calls += 1
            b.zero_grad(set_to_none=to_none)
            loss = functional.cross_entropy(theirs(x), y)
            loss.backward()
            return loss

        with torch.no_grad():  # as frameworks call it
            loss = b.step(closure)
        torch.testing.assert_close(loss.detach(), clean, rtol=0, atol=0)
        torch.testing.assert_close(loss.detach(), feedback.loss.mean())
        torch.testing.assert_close(dict(theirs.named_parameters()), dict(ours.named_parameters()))
        assert int(theirs[1].num_batches_tracked) == step + 1
        torch.testing.assert_close(theirs[1].running_var, ours[1].running_var)
    assert calls == 3 * runs
    assert b.steps == 3


def test_closure_restores_and_skips_like_backward():
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model)
    train(opt, model, 1)
    before, momentum = values(model), copy.deepcopy(opt.base.state_dict())
    x, y = data(1)

    def closure(factor=float("inf")):
        opt.zero_grad()
        loss = factor * functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    with pytest.warns(RuntimeWarning, match="step 1 is not finite"):
        loss = opt.step(closure)
    assert not torch.isfinite(loss)
    assert_equal(values(model), before)
    assert_equal(opt.base.state_dict(), momentum)
    assert (opt.steps, opt.skipped) == (1, 1)
    opt.step(lambda: closure(1.0))
    assert opt.steps == 2
    assert not torch.equal(model[0].weight, before["0.weight"])

    def broken():
        if not torch.equal(model[0].weight, at_w):
            raise KeyError("pass 2")
        return closure(1.0)

    before, at_w = values(model), model[0].weight.detach().clone()
    with pytest.raises(KeyError):
        opt.step(broken)
    assert_equal(values(model), before)


def test_a_closure_of_an_unused_parameter_leaves_grad_none():
    model = Branches()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1, weight_decay=0.1), SAM(0.1), model)
    x, y = data()

    def closure():
        opt.zero_grad(set_to_none=False)
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    before = values(model)
    for _ in range(2):
        opt.step(closure)
    assert all(p.grad is None for p in model.unused.parameters())
    assert torch.equal(model.unused.weight, before["unused.weight"])


def test_methods_that_need_rows_refuse_a_closure():
    @dataclass(frozen=True)
    class Looks:
        sharpness: ClassVar[str] = "never"

        def gradient(self, step):
            return step.backward(step.forward())

    @dataclass(frozen=True)
    class Rows:
        sharpness: ClassVar[str] = "never"

        def gradient(self, step):
            return step.gradient(torch.tensor([0]))

    model = network()
    before = values(model)
    for method in (Looks(), Rows()):
        opt = SharpnessAware(SGD(model.parameters(), lr=0.1), method, model)
        with pytest.raises(RuntimeError) as error:
            opt.step(lambda: torch.zeros(()))
        assert str(error.value) == (
            "This method needs per-sample losses, which opt.step(closure) cannot give. "
            "Call opt.backward(loss_fn, *batch) and then opt.step()."
        )
    assert_equal(values(model), before)


# -- buffers (trap 9) --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("method", [Plain(), SAM(0.5), ASAM(0.5)], ids=["plain", "sam", "asam"])
def test_batchnorm_moves_once_a_step_at_w(method, momentum):
    model = network(dtype=torch.float64)
    model[1].momentum = momentum
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), method, model)
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


class Counting(nn.Module):
    """Buffers that a forward replaces by assignment, moves in place, makes for the first time, or resizes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)
        self.register_buffer("assigned", torch.zeros(()))
        self.register_buffer("in_place", torch.zeros(2), persistent=False)
        self.register_buffer("late", None)
        self.register_buffer("resized", torch.zeros(0))

    def forward(self, x):
        self.assigned = self.assigned + 1
        self.in_place += 1
        self.late = torch.ones(()) if self.late is None else self.late + 1
        self.resized.resize_(3).copy_(torch.full((3,), float(self.in_place[0])))
        return self.linear(x)

    def state(self):
        late = None if self.late is None else float(self.late)
        return float(self.assigned), self.in_place.tolist(), late, self.resized.tolist()


def test_buffers_of_every_kind_move_once():
    model = Counting()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    train(opt, model, 3)
    assert model.state() == (3.0, [3.0, 3.0], 3.0, [3.0] * 3)


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


# -- inf and NaN -------------------------------------------------------------------------------------------------------


def spoil(model, where):
    """A loss function that is not finite in the loss or in the gradient alone, in pass 1 or in pass 2."""
    calls = 0

    def loss_fn(x, y):
        nonlocal calls
        calls += 1
        losses = losses_of(model)(x, y)
        if where == f"loss {calls}":
            return losses.clone().index_put((torch.tensor(0),), losses.new_tensor(float("inf")))
        if where == f"gradient {calls}":
            # Zero, but the square root's derivative there is infinite.
            return losses + (losses - losses.detach()).abs().sqrt()
        return losses

    return loss_fn


PLACES = ["loss 1", "loss 2", "gradient 1", "gradient 2"]


@pytest.mark.parametrize("where", PLACES)
def test_skip_changes_nothing(where):
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), Remembering(), model)
    train(opt, model, 2)
    before, base = values(model), copy.deepcopy(opt.base.state_dict())
    memory = copy.deepcopy(opt.state_dict()["ausam"]["memory"])
    with pytest.warns(RuntimeWarning) as caught:
        feedback = opt.backward(spoil(model, where), *data(2), index=torch.arange(8))
    assert [str(w.message) for w in caught] == [
        "The loss or the gradient of step 2 is not finite: that step changes nothing. "
        "This is said once; `opt.skipped` counts."
    ]
    assert caught[0].filename == __file__
    assert not all(bool(p.grad.isfinite().all()) for p in model.parameters())  # or GradScaler would use it
    opt.step()
    opt.zero_grad()
    assert_equal(values(model), before)
    assert_equal(opt.base.state_dict(), base)
    assert_equal(opt.state_dict()["ausam"]["memory"], memory)
    assert (opt.steps, opt.skipped) == (2, 1)
    assert len(feedback.loss) == len(feedback.perturbed) == 8

    opt.backward(spoil(model, where), *data(2))  # no second warning: warnings are errors here
    opt.step()
    opt.zero_grad()
    assert (opt.steps, opt.skipped) == (2, 2)
    assert_equal(values(model), before)

    # The next good batch is as if nothing had been.
    twin = network()
    clean = SharpnessAware(BASES["sgd"](twin.parameters()), Remembering(), twin)
    train(clean, twin, 3)
    train(opt, model, 1, first=2)
    assert_equal(values(model), values(twin))
    assert_equal(opt.state_dict()["ausam"]["memory"], clean.state_dict()["ausam"]["memory"])
    assert opt.state_dict()["ausam"]["skipped"] == 2


@pytest.mark.parametrize("where", PLACES)
def test_raise_restores_everything(where):
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), Remembering(), model, nonfinite="raise")
    train(opt, model, 1)
    before, ours = values(model), copy.deepcopy(opt.state_dict())
    kept = torch.ones_like(model[0].weight)
    model[0].weight.grad = kept
    with pytest.raises(RuntimeError) as error:
        opt.backward(spoil(model, where), *data(1))
    assert str(error.value) == (
        "The loss or the gradient of step 1 is not finite. Weights and buffers are as before it. "
        'Look for a too large learning rate or bad input, or pass nonfinite="skip" to leave such batches out.'
    )
    assert_equal(values(model), before)
    assert model[0].weight.grad is kept
    assert bool((kept == 1).all())
    assert model[0].bias.grad is None
    for key in ("state", "param_groups"):
        assert_equal(opt.state_dict()[key], ours[key])
    assert_equal(opt.state_dict()["ausam"]["memory"], ours["ausam"]["memory"])


@pytest.mark.parametrize("where", PLACES)
def test_ignore_promises_the_weights_alone(where):
    model = network(batchnorm=False)
    opt = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model, nonfinite="ignore")
    before = values(model)
    opt.backward(spoil(model, where), *data())
    assert_equal(values(model), before)
    assert opt.skipped == 0
    opt.step()
    assert opt.steps == 1
    if where.startswith("gradient"):  # an infinite constant has a finite one
        assert not all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_bad_micro_batch_spoils_its_step_only():
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model)
    before = values(model)
    opt.backward(losses_of(model), *data(0))
    stats = values(model)
    with pytest.warns(RuntimeWarning, match="not finite"):
        opt.backward(spoil(model, "loss 1"), *data(1))
    opt.backward(losses_of(model), *data(2))
    opt.step()
    opt.zero_grad()
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
    assert int(model[1].num_batches_tracked) == 2  # of the good ones
    assert int(stats["1.num_batches_tracked"]) == 1
    train(opt, model, 1)
    assert not torch.equal(model[0].weight, before["0.weight"])


def test_cleared_gradients_make_a_skipped_step_usable_again():
    model, twin = network(), network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), SAM(0.1), model)
    with pytest.warns(RuntimeWarning, match="not finite"):
        opt.backward(spoil(model, "loss 2"), *data(1))
    opt.zero_grad()
    train(opt, model, 1)
    train(SharpnessAware(BASES["sgd"](twin.parameters()), SAM(0.1), twin), twin, 1)
    assert_equal(values(model), values(twin))


# -- precision (trap 7, autocast) --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_grad_scaler(clip, fused):
    model, twin = network(), network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused), SAM(0.1), model)
    plain = SharpnessAware(SGD(twin.parameters(), lr=0.1, momentum=0.9), SAM(0.1), twin)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-117, growth_interval=10**6)

    def scaled(step):
        opt.backward(losses_of(model), *data(step), backward=lambda loss: scaler.scale(100 * loss).backward())
        if clip:  # without it the scaler would leave the unscaling to a fused base
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 20.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()

    before = values(model)
    with pytest.warns(RuntimeWarning, match="step 0 is not finite"):
        scaled(0)
    assert_equal(values(model), before)
    assert scaler.get_scale() == 2.0**10
    assert (opt.steps, opt.skipped, len(opt.state)) == (0, 1, 0)
    for step in range(3):
        scaled(step)
        plain.backward(lambda x, y: 100 * losses_of(twin)(x, y), *data(step))
        if clip:
            torch.nn.utils.clip_grad_norm_(twin.parameters(), 20.0)
        plain.step()
        plain.zero_grad()
    torch.testing.assert_close(values(model), values(twin), rtol=1e-4, atol=1e-5)
    assert (opt.steps, opt.skipped) == (3, 1)


def test_autocast_sees_the_shifted_weights_and_then_the_restored():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    x, y = data()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(2.0), model)
    seen = []

    def loss_fn(x, y):
        seen.append({k: v.clone() for k, v in model.state_dict().items()})
        return losses_of(model)(x, y)

    with torch.autocast("cpu", torch.bfloat16):
        feedback = opt.backward(loss_fn, x, y)
        inside = losses_of(model)(x, y)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        here = losses_of(model)(x, y)
    shifted = copy.deepcopy(model)
    shifted.load_state_dict(seen[1])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        there = losses_of(shifted)(x, y)
    assert feedback.loss.dtype == torch.float32
    torch.testing.assert_close(feedback.loss, here.float(), rtol=0, atol=0)
    torch.testing.assert_close(feedback.perturbed, there.float(), rtol=0, atol=0)
    torch.testing.assert_close(inside.detach(), here, rtol=0, atol=0)
    assert float(feedback.sharpness.max()) > 0.1  # or the test could not tell


def test_a_bfloat16_model_perturbs_by_a_float32_norm():
    torch.manual_seed(0)
    model = nn.Linear(64, 64, dtype=torch.bfloat16)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(1.0), model)
    before = values(model)
    feedback = opt.backward(lambda x: model(x).square().mean(1), torch.randn(8, 64, dtype=torch.bfloat16))
    assert_equal(values(model), before)
    assert feedback.loss.dtype == torch.float32
    assert bool((feedback.perturbed > feedback.loss).all())


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(kind, message, **changed):
    model = network()
    arguments = {"base": SGD(model.parameters(), lr=0.1), "method": SAM(0.1), "model": model, **changed}
    with pytest.raises(kind) as error:
        SharpnessAware(**arguments)
    assert str(error.value) == message


def test_constructor_errors():
    model = network()
    base = SGD(model.parameters(), lr=0.1)
    refused(
        TypeError,
        "The base is a SharpnessAware already; wrap the plain torch optimizer, once.",
        base=SharpnessAware(base, SAM(0.1), model),
    )
    refused(TypeError, "base is a list, but a torch.optim.Optimizer is needed, e.g. SGD(...).", base=[])
    refused(
        TypeError,
        "LBFGS searches along a line and evaluates its closure many times a step, so one sharpness-aware gradient a "
        "step has no meaning for it. Use SGD, Adam, AdamW or RMSprop.",
        base=torch.optim.LBFGS(model.parameters()),
    )
    refused(TypeError, f"method is {SAM!r}, but an instance such as SAM(rho=0.05) is needed.", method=SAM)
    refused(TypeError, "method is 'sam', but an instance such as SAM(rho=0.05) is needed.", method="sam")
    refused(
        TypeError, "model is a function, but the torch.nn.Module that is trained is needed.", model=losses_of(model)
    )


@pytest.mark.parametrize(
    ("loss_fn", "more", "kind", "message"),
    [
        (
            lambda z: z.mean(),
            {},
            TypeError,
            "loss_fn returned a scalar, but the losses of the single samples are needed. "
            'Build the loss with reduction="none", e.g. F.cross_entropy(model(x), y, reduction="none").',
        ),
        (
            lambda z: z,
            {},
            ValueError,
            "loss_fn returned losses of shape (8, 3), but one loss per sample is needed, shape (n,). "
            "Average what belongs to one sample, e.g. losses.flatten(1).mean(1).",
        ),
        (
            lambda z: [1.0],
            {},
            TypeError,
            "loss_fn returned a list, but per-sample losses are needed: a tensor of shape (n,), or (losses, outputs).",
        ),
        (
            lambda z: None,
            {},
            TypeError,
            "loss_fn returned a NoneType, but per-sample losses are needed: a tensor of shape (n,), "
            "or (losses, outputs).",
        ),
        (
            lambda z: z.sum(1),
            {"index": torch.arange(5)},
            ValueError,
            "loss_fn returned 8 losses for 5 samples. One loss for each sample is needed.",
        ),
        (
            lambda z: z.sum(1),
            {"weight": torch.ones(7)},
            ValueError,
            "weight has 7 entries for 8 samples. Give one per sample.",
        ),
        (
            lambda z: z.sum(1)[:0],
            {},
            ValueError,
            "The batch is empty: there is no loss to learn from. Skip empty batches.",
        ),
        (
            lambda z: z.sum(1),
            {"index": torch.rand(8)},
            TypeError,
            "index has shape (8,) and type torch.float32, but one whole number per sample is needed: "
            "the dataset index that Indexed(dataset) delivers.",
        ),
        (
            lambda z: z.sum(1),
            {"index": torch.zeros(8, 1, dtype=torch.int64)},
            TypeError,
            "index has shape (8, 1) and type torch.int64, but one whole number per sample is needed: "
            "the dataset index that Indexed(dataset) delivers.",
        ),
        (
            lambda z: z.sum(1),
            {"index": torch.ones(8, dtype=torch.bool)},
            TypeError,
            "index has shape (8,) and type torch.bool, but one whole number per sample is needed: "
            "the dataset index that Indexed(dataset) delivers.",
        ),
    ],
    ids=["scalar", "2d", "list", "none", "length", "weight", "empty", "float", "index-2d", "bool"],
)
def test_backward_errors(loss_fn, more, kind, message):
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    before = values(model)
    with pytest.raises(kind) as error:
        opt.backward(lambda x: loss_fn(model(x)), data()[0], **more)
    assert str(error.value) == message
    assert_equal(values(model), before)
    assert all(p.grad is None for p in model.parameters())


def test_another_length_in_pass_2_is_refused():
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    before = values(model)
    rest = iter([8, 6])
    with pytest.raises(ValueError) as error:
        opt.backward(lambda x: model(x).sum(1)[: next(rest)], data()[0])
    assert str(error.value) == "loss_fn returned 6 losses for 8 samples. One loss for each sample is needed."
    assert_equal(values(model), before)


def test_sparse_gradients_are_refused():
    model = nn.Embedding(5, 3, sparse=True)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    with pytest.raises(RuntimeError) as error:
        opt.backward(lambda i: model(i).sum(1), torch.tensor([0, 1]))
    assert str(error.value) == (
        "A gradient is sparse, and a norm over all parameters needs dense ones. Build the embedding with sparse=False."
    )
    assert model.weight.grad is None


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
    with pytest.raises(RuntimeError) as error:
        opt.backward(losses_of(model), *data())
    assert str(error.value) == (
        "The weights are shifted already. Leave the first `with step.shifted(...)` before the next."
    )
    assert_equal(values(model), before)


def test_check():
    for method in (SAM(), ASAM()):
        check(method, AUSampling())
    with pytest.raises(ValueError) as error:
        check(Plain(), AUSampling())
    message = str(error.value)
    assert message.startswith(
        "AUSampling ranks samples by sharpness, but Plain never evaluates the loss at perturbed weights. "
        "Pair it with SAM, ASAM, "
    )
    assert message.endswith(", or choose a policy that ranks by loss.")
    assert "Plain," not in message.split("Pair it with")[1]


# -- the record --------------------------------------------------------------------------------------------------------


def test_feedback_of_each_method():
    model = network()
    x, y = data()
    plain = SharpnessAware(SGD(model.parameters(), lr=0.1), Plain(), model).backward(losses_of(model), x, y)
    assert plain.index is None
    assert bool(plain.perturbed.isnan().all())
    assert not plain.loss.requires_grad
    sam = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model).backward(
        losses_of(model), x, y, index=range(8)
    )
    torch.testing.assert_close(sam.loss, plain.loss, rtol=0, atol=0)
    assert bool((sam.sharpness > 0).all())
    assert sam.index.dtype == torch.int64


def test_sharpness_is_the_absolute_difference():
    feedback = Feedback(None, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.5, 1.0, float("nan")]))
    assert feedback.sharpness[:2].tolist() == [0.5, 1.0]
    assert bool(feedback.sharpness[2].isnan())


def test_global_random_state_is_left_alone():
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    state = torch.get_rng_state()
    train(opt, model, 2)
    assert torch.equal(torch.get_rng_state(), state)


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


def test_plain_takes_sparse_gradients_as_torch_does():
    models = [nn.Embedding(5, 3, sparse=True) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    index = torch.tensor([0, 2, 2])
    opt = SharpnessAware(SGD(models[0].parameters(), lr=0.1), Plain(), models[0])
    plain = SGD(models[1].parameters(), lr=0.1)
    for _ in range(3):
        for _ in range(2):  # accumulated, too
            opt.backward(lambda i: models[0](i).square().sum(1), index)
            models[1](index).square().sum(1).mean().backward()
        opt.step()
        opt.zero_grad()
        plain.step()
        plain.zero_grad()
    assert torch.equal(models[0].weight, models[1].weight)


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


def test_feedback_keeps_the_precision_of_the_losses():
    for dtype in (torch.float32, torch.float64):
        model = network(dtype=dtype)
        opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(1e-7), model)
        feedback = opt.backward(losses_of(model), *data(dtype=dtype))
        assert feedback.loss.dtype == feedback.perturbed.dtype == feedback.sharpness.dtype == dtype
    assert (feedback.sharpness > 0).all()  # in float32 the difference of the two would be lost
