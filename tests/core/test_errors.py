"""What is refused, with what was found and the remedy."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ausam import ASAM, SAM, AUSampling, Plain, SharpnessAware, check
from tests.helpers import assert_equal, data, losses_of, network, refused, values


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        (lambda model, base: {"base": SharpnessAware(base, SAM(0.1), model)}, ("already a SharpnessAware", "once")),
        (lambda model, base: {"base": []}, ("base is a list", "e.g. SGD(...)")),
        (
            lambda model, base: {"base": torch.optim.LBFGS(model.parameters())},
            ("LBFGS", "Use SGD, Adam, AdamW or RMSprop."),
        ),
        (lambda model, base: {"method": SAM}, (f"method is {SAM!r}", "an instance such as SAM(rho=0.05)")),
        (lambda model, base: {"method": "sam"}, ("method is 'sam'", "an instance such as SAM(rho=0.05)")),
        (lambda model, base: {"model": losses_of(model)}, ("model is a function", "torch.nn.Module")),
    ],
    ids=["twice", "list", "lbfgs", "class", "string", "function"],
)
def test_constructor_errors(changed, parts):
    model = network()
    arguments = {"base": SGD(model.parameters(), lr=0.1), "method": SAM(0.1), "model": model}
    with refused(TypeError, *parts):
        SharpnessAware(**{**arguments, **changed(model, arguments["base"])})


NOT_AN_INDEX = ("one whole number per sample", "Indexed(dataset)")


@pytest.mark.parametrize(
    ("loss_fn", "more", "kind", "parts"),
    [
        (lambda z: z.mean(), {}, TypeError, ("a scalar", 'reduction="none"')),
        (lambda z: z, {}, ValueError, ("shape (8, 3)", "shape (n,)", "losses.flatten(1).mean(1)")),
        (lambda z: [1.0], {}, TypeError, ("returned a list", "shape (n,), or (losses, outputs)")),
        (lambda z: None, {}, TypeError, ("returned a NoneType", "shape (n,), or (losses, outputs)")),
        (lambda z: z.sum(1), {"index": torch.arange(5)}, ValueError, ("8 losses for 5 samples", "one loss per sample")),
        (lambda z: z.sum(1), {"weight": torch.ones(7)}, ValueError, ("7 entries for 8 samples", "one per sample")),
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
    ids=["scalar", "2d", "list", "none", "length", "weight", "empty", "float", "index-2d", "bool"],
)
def test_backward_errors(loss_fn, more, kind, parts):
    model = network()
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    before = values(model)
    with refused(kind, *parts):
        opt.backward(lambda x: loss_fn(model(x)), data()[0], **more)
    assert_equal(values(model), before)
    assert all(p.grad is None for p in model.parameters())


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
    with refused(RuntimeError, "sparse", "Build the embedding with sparse=False."):
        opt.backward(lambda i: model(i).sum(1), torch.tensor([0, 1]))
    assert model.weight.grad is None


def test_check():
    for method in (SAM(), ASAM()):
        check(method, AUSampling())
    with refused(
        ValueError, "AUSampling", "Plain never evaluates", "Pair it with SAM, ASAM, ", "ranks by loss"
    ) as error:
        check(Plain(), AUSampling())
    assert "Plain," not in str(error.value).split("Pair it with")[1]
