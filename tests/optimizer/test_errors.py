"""The mistakes of a beginner: each error says what was found and what to write."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from ausam import ASAM, SAM, AUSampling, Feedback, SharpnessAware, check
from tests.helpers import assert_equal, data, losses_of, network, refused, values


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        (lambda model, base: {"base": SharpnessAware(base, SAM(0.1), model)}, ("already a SharpnessAware", "once")),
        (lambda model, base: {"base": model.parameters()}, ("base is <generator", "SGD(model.parameters(), lr=0.1)")),
        (lambda model, base: {"base": SGD}, ("base is <class", "SGD(model.parameters(), lr=0.1)")),
        (
            lambda model, base: {"base": torch.optim.LBFGS(model.parameters())},
            ("LBFGS", "Use SGD, Adam, AdamW or RMSprop."),
        ),
        (lambda model, base: {"method": SAM}, ("method is <class", "an instance such as SAM(rho=0.05)")),
        (lambda model, base: {"method": "sam"}, ("method is 'sam'", "an instance such as SAM(rho=0.05)")),
        (lambda model, base: {"method": model}, ("method is Sequential", "an instance such as SAM(rho=0.05)")),
        (lambda model, base: {"model": losses_of(model)}, ("model is <function", "torch.nn.Module")),
    ],
    ids=["twice", "parameters", "class", "lbfgs", "method class", "string", "swapped", "function"],
)
def test_constructor_errors(changed, parts):
    model = network()
    arguments = {"base": SGD(model.parameters(), lr=0.1), "method": SAM(0.1), "model": model}
    with refused(TypeError, *parts):
        SharpnessAware(**{**arguments, **changed(model, arguments["base"])})


@pytest.mark.parametrize(
    "build",
    [
        lambda model: SAM(model.parameters(), SGD),
        lambda model: SAM(model.parameters(), SGD, rho=0.05, lr=0.1, momentum=0.9),
        lambda model: SAM(model.parameters(), base_optimizer=SGD, adaptive=True, lr=0.1),
        lambda model: ASAM(model.parameters(), SGD, lr=0.1),
        lambda model: SAM(list(model.parameters()), torch.optim.Adam),
        lambda model: SAM(SGD(model.parameters(), lr=0.1)),
    ],
    ids=["davda54", "keywords", "by name", "adaptive", "list", "optimizer"],
)
def test_a_method_of_parameters_says_how_to_wrap_the_optimizer(build):
    with refused(TypeError, "SharpnessAware(SGD(model.parameters()", "SAM(rho=0.05), model)", "ausam.compat"):
        build(network())


def test_what_other_optimizers_have():
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    assert not hasattr(opt, "rho")
    with refused(AttributeError, 'group["rho"] = 0.2', "RhoSchedule"):
        opt.rho = 0.2
    for name in ("first_step", "second_step"):
        assert not hasattr(opt, name)
        with refused(AttributeError, name, "opt.backward(loss_fn, *batch)"):
            getattr(opt, name)(zero_grad=True)


NOT_AN_INDEX = ("one whole number per sample", "Indexed(dataset)")


@pytest.mark.parametrize(
    ("loss_fn", "more", "kind", "parts"),
    [
        (lambda z: z.mean(), {}, TypeError, ("a scalar", 'reduction="none"')),
        (lambda z: z, {}, ValueError, ("shape (8, 3)", "shape (n,)", "losses.flatten(1).mean(1)")),
        (lambda z: z[:, :1] - z[:, 0], {}, ValueError, ("shape (8, 8)", "(n, 1) met targets", "outputs.squeeze(1)")),
        (lambda z: [1.0], {}, TypeError, ("returned a list", "shape (n,), or (losses, outputs)")),
        (lambda z: None, {}, TypeError, ("returned a NoneType", "shape (n,), or (losses, outputs)")),
        (lambda z: z.sum(1), {"index": torch.arange(5)}, ValueError, ("8 losses for 5 samples", "one loss per sample")),
        (lambda z: z.sum(1), {"weight": torch.ones(7)}, ValueError, ("shape (7,) for 8 samples", "shape (8,)")),
        (lambda z: z.sum(1), {"weight": torch.ones(8, 1)}, ValueError, ("shape (8, 1) for 8 samples", "shape (8,)")),
        (lambda z: (z.sum(1), z, z), {}, TypeError, ("returned 3 things", "return losses, (z, features)")),
        (lambda z: z.sum(1)[:0], {}, ValueError, ("empty", "Skip empty batches.")),
        (lambda z: z.sum(1), {"index": torch.rand(8)}, TypeError, ("(8,)", "torch.float32", *NOT_AN_INDEX)),
        (
            lambda z: z.sum(1),
            {"index": torch.zeros(8, 1, dtype=torch.int64)},
            TypeError,
            ("(8, 1)", "torch.int64", *NOT_AN_INDEX),
        ),
        (
            lambda z: z.sum(1),
            {"index": torch.ones(8, dtype=torch.bool)},
            TypeError,
            ("(8,)", "torch.bool", *NOT_AN_INDEX),
        ),
    ],
    ids=[
        "scalar",
        "2d",
        "broadcast",
        "list",
        "none",
        "length",
        "weight",
        "weight-2d",
        "three",
        "empty",
        "float",
        "index-2d",
        "bool",
    ],
)
def test_backward_errors(loss_fn, more, kind, parts):
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    before = values(model)
    with refused(kind, *parts):
        opt.backward(lambda x: loss_fn(model(x)), data()[0], **more)
    assert_equal(values(model), before)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("losses", "kind", "remedy"),
    [
        (lambda z: F.cross_entropy(z, torch.tensor([64]), reduction="none"), IndexError, "for x, y, index in loader"),
        (lambda z: F.binary_cross_entropy_with_logits(z[:, :1].squeeze(), torch.ones(1)), ValueError, ".squeeze(1)"),
    ],
    ids=["index for label", "last batch of one"],
)
def test_torchs_errors_get_a_remedy(losses, kind, remedy):
    model = network(batchnorm=False)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    with pytest.raises(kind) as caught:
        opt.backward(lambda x: losses(model(x)), data()[0][:1])
    assert remedy in caught.value.__notes__[0]


@pytest.mark.parametrize("wrong", [torch.zeros(()), torch.zeros(3), 1.0, None])
def test_a_loss_in_place_of_the_function_is_refused_with_the_remedy(wrong):
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    with refused(TypeError, "the function that computes the losses", "In place of loss.backward() write opt.backward("):
        opt.backward(wrong)


def without_graph(model, x, y):
    with torch.no_grad():
        return losses_of(model)(x, y)


@pytest.mark.parametrize("loss", [without_graph, lambda model, x, y: losses_of(model)(x, y).detach()])
@pytest.mark.parametrize("how", [{}, {"backward": lambda loss: (2 * loss).backward()}])
def test_losses_without_a_graph(loss, how):
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    with refused(RuntimeError, "torch.no_grad()", "detach()", "requires_grad"):
        opt.backward(functools.partial(loss, model), *data(), **how)


def test_a_loss_function_that_calls_backward_itself():
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)

    def losses(x, y):
        loss = losses_of(model)(x, y)
        loss.mean().backward()
        return loss

    with pytest.raises(RuntimeError, match="a second time") as caught:
        opt.backward(losses, *data())
    assert "must not call backward" in caught.value.__notes__[0]


def test_another_length_in_pass_2_is_refused():
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    before = values(model)
    rest = iter([8, 6])
    with refused(ValueError, "6 losses for 8 samples", "Return one loss per sample"):
        opt.backward(lambda x: model(x).sum(1)[: next(rest)], data()[0])
    assert_equal(values(model), before)


def test_sparse_gradients_are_refused():
    model = nn.Embedding(5, 3, sparse=True)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    with refused(RuntimeError, "sparse", "the embedding with sparse=False."):
        opt.backward(lambda i: model(i).sum(1), torch.tensor([0, 1]))
    assert model.weight.grad is None


@pytest.mark.parametrize(
    ("method", "policy"), [(SAM(), None), (None, AUSampling()), (SAM, AUSampling), (SAM(), AUSampling)]
)
def test_a_pair_of_something_else(method, policy):
    with refused(TypeError, "an instance such as"):
        check(method, policy)


def test_feedback_by_hand():
    with refused(TypeError, "loss is a list", "torch.tensor"):
        Feedback(None, [1.0], [2.0])
    with refused(ValueError, "loss has shape (3,)", "perturbed (2,)", "one number per sample"):
        Feedback(None, torch.ones(3), torch.ones(2))


@pytest.mark.parametrize(("result", "what"), [(None, "a NoneType"), ([None], "1 entries"), (torch.ones(3), "a Tensor")])
def test_a_method_that_returns_no_gradient_is_named(result, what):
    class Forgetful:
        sharpness, passes = "never", (1.0, 1.0)

        def gradient(self, step):
            step.gradient()
            return result

    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), Forgetful(), model)
    before = values(model)
    with refused(TypeError, f"Forgetful.gradient returned {what}", "for each of the 6 trained parameters"):
        opt.backward(losses_of(model), *data())
    assert_equal(values(model), before)


def test_a_loss_of_another_model_is_warned_of_once():
    model, other = network(), network(1)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    with pytest.warns(RuntimeWarning, match="No parameter of the optimizer received a gradient") as caught:
        opt.backward(losses_of(other), *data())
    assert caught[0].filename == __file__
    opt.backward(losses_of(other), *data())  # warnings are errors here


@pytest.mark.parametrize("rho", [-0.5, float("nan")])
def test_a_radius_of_a_group_is_checked(rho):
    model = network()
    opt = SharpnessAware(SGD([{"params": model.parameters(), "rho": rho}], lr=0.1), SAM(0.1), model)
    with refused(ValueError, f"rho of a parameter group is {rho}", ">= 0"):
        opt.backward(losses_of(model), *data())


def test_a_lazy_module_needs_a_forward_first():
    model = nn.LazyLinear(3)
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    with refused(RuntimeError, "lazy module", "with torch.no_grad(): model(x)"):
        opt.backward(losses_of(model), *data())
    model(data()[0])
    opt.backward(losses_of(model), *data())
