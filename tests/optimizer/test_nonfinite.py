"""A loss or a gradient that is inf or NaN: skip, raise, ignore."""

from __future__ import annotations

import copy

import pytest
import torch

from ausam import SAM, FriendlySAM, LookSAM, Plain, PreviousGradientSAM, SharpnessAware
from ausam.optimizer.nonfinite import nonfinite_flag
from tests.helpers import assert_equal, data, losses_of, network, train, values
from tests.optimizer.parts import BASES, PLACES, Remembering, spoil


@pytest.mark.parametrize("where", PLACES)
def test_skip_changes_nothing(where):
    model = network()
    opt = SharpnessAware(BASES["sgd"](model.parameters()), Remembering(), model)
    train(opt, model, 2)
    before, base = values(model), copy.deepcopy(opt.base.state_dict())
    memory = copy.deepcopy(opt.state_dict()["ausam"]["memory"])
    with pytest.warns(RuntimeWarning) as caught:
        feedback = opt.backward(spoil(model, where), *data(2), index=torch.arange(8))
    (message,) = [str(w.message) for w in caught]
    assert all(part in message for part in ("skipped", "`opt.skipped` counts"))
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


def test_huge_is_not_infinite():
    """Entries whose squares overflow: the norm is inf, but every number is finite."""
    model = torch.nn.Linear(2, 1, bias=False)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.0), Plain(), model)
    opt.backward(lambda x: model(x).squeeze(1), torch.full((3, 2), 1e25))
    opt.step()
    assert (opt.steps, opt.skipped) == (1, 0)


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize(
    "make",
    {
        "one precision": lambda v: [torch.ones(3), torch.tensor([1.0, v])],
        "several": lambda v: [torch.ones(3, dtype=torch.bfloat16), torch.tensor([v], dtype=torch.float64)],
        "complex": lambda v: [torch.ones(2), torch.complex(torch.ones(2), torch.tensor([0.0, v]))],
        "sparse": lambda v: [torch.tensor([0.0, v]).to_sparse(), torch.ones(2)],
        "expanded": lambda v: [torch.tensor(v).expand(4)],
    }.values(),
)
def test_what_is_not_finite_is_found_in_every_kind_of_tensor_and_nothing_is_changed(make, bad):
    for value, expected in ((bad, True), (3e38, False)):
        vector, twin = make(value), make(value)
        assert bool(nonfinite_flag(vector)) is expected
        for a, b in zip(vector, twin, strict=True):
            assert torch.equal(a.to_dense().nan_to_num(), b.to_dense().nan_to_num())
    assert not nonfinite_flag([])


@pytest.mark.filterwarnings("ignore:The loss or the gradient:RuntimeWarning")
def test_a_first_parameter_without_elements_does_not_hide_that_a_step_is_skipped():
    model = torch.nn.Linear(3, 2)
    empty = torch.nn.Parameter(torch.zeros(0))
    opt = SharpnessAware(torch.optim.SGD([empty, *model.parameters()], lr=0.1), SAM(0.1), model)
    before = values(model)
    bad = torch.tensor([float("inf"), 0.0, 0.0, 0.0])
    opt.backward(lambda x: model(x).sum(1) + empty.sum() + bad, torch.ones(4, 3))  # its gradient is finite
    opt.step()
    assert (opt.skipped, opt.steps) == (1, 0)
    assert_equal(values(model), before)


@pytest.mark.filterwarnings("ignore:The loss or the gradient:RuntimeWarning")
@pytest.mark.parametrize("method", [LookSAM(0.1, k=5), PreviousGradientSAM(0.1), FriendlySAM(0.1)])
def test_a_skipped_step_leaves_nothing_of_its_earlier_micro_batches(method):
    memories = []
    for spoilt in (True, False):
        model = network()
        opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), method, model)
        train(opt, model, 2)
        if spoilt:
            opt.backward(losses_of(model), *data(7))
            opt.backward(losses_of(model), data(8)[0] * float("nan"), data(8)[1])
            opt.step()
            opt.zero_grad()
        memories.append(copy.deepcopy(opt.state_dict()["ausam"]["memory"]))
    assert_equal(*memories)
