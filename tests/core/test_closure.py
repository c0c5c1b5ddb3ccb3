"""torch's closure protocol: what was in .grad before, what a closure may return, and hooks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ausam import SAM, Plain, SharpnessAware

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


def network():
    torch.manual_seed(0)
    return nn.Linear(4, 3).double()


def optimizer(model, method):
    return SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), method, model)


def flat(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("clears", [False, True])
def test_what_was_in_grad_is_kept_unless_the_closure_clears_it(clears, to_none):
    """Lightning's accumulate_grad_batches: the first micro-batch is back-propagated, the second comes as a closure."""
    model = network()
    opt = optimizer(model, SAM(0.2))
    w = flat(model)

    def closure():
        if clears:
            opt.zero_grad(set_to_none=to_none)
        loss = F.cross_entropy(model(X[4:]), Y[4:]) / 2
        loss.backward()
        return loss

    (F.cross_entropy(model(X[:4]), Y[:4]) / 2).backward()
    first = torch.cat([p.grad.flatten() for p in model.parameters()])
    opt.step(closure)

    twin = network()
    g = torch.autograd.grad(F.cross_entropy(twin(X[4:]), Y[4:]) / 2, list(twin.parameters()))
    g = torch.cat([t.flatten() for t in g])
    nn.utils.vector_to_parameters(w + 0.2 * g / g.norm(), twin.parameters())
    sharp = torch.autograd.grad(F.cross_entropy(twin(X[4:]), Y[4:]) / 2, list(twin.parameters()))
    total = torch.cat([t.flatten() for t in sharp]) + (0.0 if clears else first)
    torch.testing.assert_close(flat(model), w - 0.1 * total, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [dict, tuple, list, float, None], ids=str)
def test_a_closure_may_return_what_it_likes(shape):
    model = network()
    opt = optimizer(model, SAM(0.2))

    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        if shape is dict:
            return {"main": loss, "extra": loss.detach() * 0}
        if shape in (tuple, list):
            return shape((loss, loss.detach() * 0))
        return loss.item() if shape is float else None

    before = flat(model)
    value = opt.step(closure)
    assert not torch.equal(flat(model), before)
    assert value is None if shape is None else isinstance(value, shape)


def test_a_part_that_is_not_finite_skips_the_step():
    model = network()
    opt = optimizer(model, SAM(0.2))

    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return {"main": loss, "extra": torch.tensor(float("nan"))}

    before = flat(model)
    with pytest.warns(RuntimeWarning, match="not finite"):
        opt.step(closure)
    assert torch.equal(flat(model), before)
    assert opt.skipped == 1


def test_a_step_that_passes_the_method_by_warns_once():
    model = network()
    opt = optimizer(model, SAM(0.2))
    F.cross_entropy(model(X), Y).backward()
    with pytest.warns(RuntimeWarning, match=r"gradients that SAM did not compute.*opt\.backward\(loss_fn") as caught:
        opt.step()
    assert caught[0].filename == __file__
    opt.zero_grad()
    F.cross_entropy(model(X), Y).backward()
    opt.step()  # warnings are errors here: it is said once
    opt.zero_grad()
    opt.step()  # nothing to pass by


def test_plain_needs_no_warning():
    model = network()
    opt = optimizer(model, Plain())
    F.cross_entropy(model(X), Y).backward()
    opt.step()


@pytest.mark.parametrize("wrong", [torch.zeros(()), torch.zeros(3), 1.0, None])
def test_a_loss_in_place_of_the_function_is_refused_with_the_remedy(wrong):
    model = network()
    with pytest.raises(TypeError, match=r"needs the function that computes the losses.*In place of loss\.backward\(\)"):
        optimizer(model, SAM(0.2)).backward(wrong)


def test_hooks_get_what_torchs_own_optimizer_would_give_them():
    model = network()
    opt = optimizer(model, SAM(0.2))
    seen = []
    opt.register_step_pre_hook(lambda o, args, kwargs: seen.append(("pre", o, len(args), kwargs)))
    opt.register_step_post_hook(lambda o, args, kwargs: seen.append(("post", o, len(args), kwargs)))
    opt.register_state_dict_pre_hook(lambda o: seen.append(("saving", o)))
    opt.register_state_dict_post_hook(lambda o, state: seen.append(("saved", o, "ausam" in state)))
    opt.register_load_state_dict_pre_hook(lambda o, state: seen.append(("loading", o, "ausam" in state)))
    opt.register_load_state_dict_post_hook(lambda o: seen.append(("loaded", o)))
    opt.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), X, Y)
    opt.step()
    opt.load_state_dict(opt.state_dict())
    assert seen == [
        ("pre", opt, 1, {}),
        ("post", opt, 1, {}),
        ("saving", opt),
        ("saved", opt, True),
        ("loading", opt, True),
        ("loaded", opt),
    ]


def test_a_hook_may_change_the_state_dict():
    opt = optimizer(network(), SAM(0.2))
    opt.register_state_dict_post_hook(lambda o, state: {**state, "extra": 1})
    assert opt.state_dict()["extra"] == 1
    opt.register_load_state_dict_pre_hook(lambda o, state: {k: v for k, v in state.items() if k != "extra"})
    opt.load_state_dict(opt.state_dict())
