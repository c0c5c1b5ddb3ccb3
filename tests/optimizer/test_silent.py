"""What used to go wrong without a word: honoured now, raised, or warned about once."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adadelta, AdamW, Muon

from ausam import (
    ASAM,
    ESAM,
    KSAM,
    SAM,
    Feedback,
    FunctionalSAM,
    LookSAM,
    MomentumSAM,
    Plain,
    RhoSchedule,
    SharpnessAware,
)
from tests.helpers import assert_equal, data, losses_of, network, refused, same_weights, values, with_logits


def sam(model, method=None, **settings):
    return SharpnessAware(SGD(model.parameters(), lr=0.1, momentum=0.9), method or SAM(0.1), model, **settings)


def distance(model, w):
    return torch.cat([(p - q).flatten() for p, q in zip(model.parameters(), w, strict=True)]).norm().item()


# -- the radius --------------------------------------------------------------------------------------------------------


def test_an_optimizer_with_a_rho_of_its_own_keeps_it():
    model = network(batchnorm=False)
    opt = SharpnessAware(Adadelta(model.parameters()), SAM(0.05), model)
    w, moved = [p.detach().clone() for p in model.parameters()], []

    def losses(x, y):
        moved.append(distance(model, w))
        return losses_of(model)(x, y)

    opt.backward(losses, *data())
    assert moved == pytest.approx([0.0, 0.05], abs=1e-6)
    opt.zero_grad()
    schedule = RhoSchedule(opt, "linear", end=0.0, total_steps=2)
    schedule.step()
    assert opt.param_groups[0]["rho"] == 0.9
    opt.backward(losses, *data())
    assert moved[2:] == pytest.approx([0.0, 0.025], abs=1e-6)
    with refused(AttributeError, 'group["sam_rho"]'):
        opt.rho = 0.1


@pytest.mark.parametrize("method", [SAM(0.1), ASAM(0.5), LookSAM(0.1, k=2), MomentumSAM(0.1)], ids=repr)
def test_maximising_equals_minimising_the_negative(method):
    rising, falling = network(), network()
    up = SharpnessAware(SGD(rising.parameters(), lr=0.1, momentum=0.9, maximize=True), method, rising)
    down = sam(falling, method)
    for step in range(4):
        up.backward(lambda x, y: -losses_of(rising)(x, y), *data(step))
        down.backward(losses_of(falling), *data(step))
        for opt in (up, down):
            opt.step()
            opt.zero_grad()
    same_weights(rising, falling, atol=1e-6)


@pytest.mark.parametrize("method", [ESAM(), KSAM(), FunctionalSAM()], ids=repr)
def test_methods_that_compare_losses_do_not_maximise(method):
    model = network()
    with refused(ValueError, "maximize=True", "negative losses"):
        SharpnessAware(SGD(model.parameters(), lr=0.1, maximize=True), method, model)


# -- graphs and gradients from outside ---------------------------------------------------------------------------------


@pytest.mark.parametrize("closure", [False, True])
def test_a_graph_from_outside_is_warned_of(closure):
    model = network(batchnorm=False)
    opt = sam(model)
    x, y = data()
    for first in (True, False):
        opt.zero_grad()
        z = model(x)

        def step(z=z):
            if closure:

                def again():
                    loss = F.cross_entropy(z, y)
                    loss.backward(retain_graph=True)
                    return loss

                opt.step(again)
            else:
                opt.backward(
                    lambda y: F.cross_entropy(z, y, reduction="none"),
                    y,
                    backward=lambda loss: loss.backward(retain_graph=True),
                )

        if first:
            with pytest.warns(RuntimeWarning, match="not one loss changed") as caught:
                step()
            assert caught[0].filename == __file__
        else:
            step()  # warnings are errors here


def test_a_backward_beside_ours_is_warned_of():
    model = network()
    opt = sam(model)
    losses_of(model)(*data()).mean().backward()
    with pytest.warns(RuntimeWarning, match="adds to gradients that it did not compute") as caught:
        opt.backward(losses_of(model), *data())
    assert caught[0].filename == __file__
    opt.zero_grad(set_to_none=False)
    sam(model).backward(losses_of(model), *data())  # zeros are nothing


def test_a_backward_after_ours_is_warned_of():
    model = network()
    opt = sam(model)
    for first in (True, False):
        opt.backward(losses_of(model), *data())
        losses_of(model)(*data()).mean().backward()
        opt.backward(losses_of(model), *data(1))  # a further micro-batch does not hide it
        if first:
            with pytest.warns(RuntimeWarning, match="loss.backward.. after opt.backward adds") as caught:
                opt.step()
            assert caught[0].filename == __file__
        else:
            opt.step()  # warnings are errors here
        opt.zero_grad()


@pytest.mark.parametrize("copied", [False, True])
def test_what_else_changes_gradients_before_the_step_is_not(copied):
    """Clipping, accumulation, other optimizers of ours, a backward before, and one whose gradients are cleared."""
    model = network()
    opt, other = sam(model), sam(network(seed=1))
    if copied:
        model, opt = copy.deepcopy((model, opt))
    for step in range(3):
        if step:
            losses_of(model)(*data()).mean().backward()
            opt.zero_grad()
        opt.backward(losses_of(model), *data(), backward=lambda loss: (loss / 2).backward())
        opt.backward(lambda x, y: losses_of(model)(x, y) / 2, *data(1))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        other.backward(lambda x, y: losses_of(other.model)(x, y) + losses_of(model)(x, y).mean(), *data())
        opt.step()
        opt.zero_grad()


def test_an_optimizer_that_is_gone_leaves_no_hook():
    model = network()
    for _ in range(3):
        opt = sam(model)
        opt.backward(losses_of(model), *data())
        opt.zero_grad()
    del opt
    gc.collect()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


@pytest.mark.parametrize("inside", [True, False])
def test_a_grad_scaler_that_backward_does_not_know_is_warned_of(inside):
    """Inside the loss function every threshold is off by the scale; left out, the gradient is divided by it."""
    model = network()
    opt, scaler = sam(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    opt.backward(
        lambda x, y: scaler.scale(losses_of(model)(x, y)) if inside else scaler.scale(losses_of(model)(x, y)) / 1024,
        *data(),
    )
    with pytest.warns(RuntimeWarning, match=r"backward=lambda loss: scaler.scale\(loss\).backward\(\)"):
        scaler.step(opt)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_grad_scaler_as_documented_is_not(enabled):
    model = network()
    opt, scaler = sam(model), torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=enabled)
    for _ in range(2):
        opt.backward(losses_of(model), *data(), backward=lambda loss: scaler.scale(loss).backward())
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
    opt.backward(losses_of(model), *data())
    opt.step()


def test_a_closure_without_backward_is_warned_of():
    model = network()
    with pytest.warns(RuntimeWarning, match=r"left no gradient.*loss\.backward\(\) inside the closure"):
        sam(model).step(lambda: losses_of(model)(*data()).mean())
    sam(model).step(lambda: None)  # a batch that the closure skips


# -- what depends on the other rows, and on the pass -------------------------------------------------------------------


@pytest.mark.parametrize("method", [SAM(0.1, m=4), SAM(0.1, ascent=0.5), ESAM(0.1), KSAM(0.1)], ids=repr)
def test_a_batch_that_must_stay_whole_is_not_cut(method):
    model = network()
    before = values(model)
    with refused(ValueError, "whole_batch=True", "Use SAM()"):
        sam(model, method).backward(losses_of(model), *data(), whole_batch=True)
    assert_equal(values(model), before)
    sam(model).backward(losses_of(model), *data(), whole_batch=True)


def test_an_error_of_a_part_says_that_it_was_one():
    model = network(batchnorm=False)
    graph = torch.eye(8)
    with pytest.raises(RuntimeError) as error:
        sam(model, SAM(0.1, ascent=0.5)).backward(
            lambda x, y: F.cross_entropy(graph @ model(x), y, reduction="none"), *data()
        )
    assert any("4 of the 8 rows" in note for note in error.value.__notes__)


def test_the_pass_reaches_the_loss_function_and_the_closure():
    model, twin = network(batchnorm=False), network(batchnorm=False)
    opt, by_hand = sam(model), sam(twin)
    x, y = data()
    seen = []

    def losses(x, y):
        seen.append(opt.pass_index)
        z = model(x)
        extra = z.square().sum(1) if opt.pass_index == 1 else 0.0
        return F.cross_entropy(z, y, reduction="none") + extra

    calls = itertools.count()

    def closure():
        z = twin(x)
        loss = F.cross_entropy(z, y) + (z.square().sum(1).mean() if next(calls) % 2 else 0.0)
        loss.backward()
        return loss

    for _ in range(2):
        opt.backward(losses, x, y)
        opt.step()
        opt.zero_grad()
        by_hand.step(closure)
    assert seen == [0, 1, 0, 1]
    same_weights(model, twin, rtol=1e-5, atol=1e-6)


def test_replay_repeats_the_numbers_of_python_and_numpy():
    model, drawn = network(), []

    def losses(x, y):
        drawn.append((random.random(), np.random.rand(), torch.rand(()).item()))  # noqa: NPY002
        return losses_of(model)(x, y)

    opt = sam(model, replay=True)
    for _ in range(2):
        opt.backward(losses, *data())
    assert drawn[0] == drawn[1]
    assert drawn[2] == drawn[3]
    assert drawn[1] != drawn[2]


# -- state that changes in the loss function ---------------------------------------------------------------------------


class Momentum(nn.Module):
    """MoCo: a frozen key encoder that follows the trained one in every forward, and a queue of its keys."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.how = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False), how
        self.register_buffer("queue", torch.randn(3, 8))

    @torch.no_grad()
    def follow(self):
        for q, k in zip(self.query.parameters(), self.key.parameters(), strict=True):
            if self.how == "data":
                k.data = k.data * 0.9 + q.data * 0.1
            else:
                k.mul_(0.9).add_(q, alpha=0.1)

    def forward(self, x):
        q = self.query(x)
        self.follow()
        with torch.no_grad():
            k = self.key(x)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], 1)
        self.queue = torch.cat([k.T, self.queue], 1)[:, :8]
        return logits


@pytest.mark.parametrize("how", ["data", "in place"])
def test_frozen_parameters_that_a_forward_changes_move_once(how):
    model = Momentum(how)
    opt, zeros = sam(model), torch.zeros(8, dtype=torch.int64)
    if how == "in place":  # the first change of all is seen too late for the second pass of that step
        opt.backward(lambda x: F.cross_entropy(model(x), zeros, reduction="none"), data()[0])
        opt.zero_grad()
    twin = copy.deepcopy(model)
    base = SGD(twin.parameters(), lr=0.1, momentum=0.9)

    def losses_at_start(net, start):
        net.load_state_dict({**net.state_dict(), **start})
        return F.cross_entropy(net(data(step)[0]), zeros)

    for step in range(6):
        opt.backward(lambda x: F.cross_entropy(model(x), zeros, reduction="none"), data(step)[0])
        opt.step()
        opt.zero_grad()
        # By hand: both passes start from the key encoder and the queue of the step's beginning.
        frozen = {k: v.clone() for k, v in twin.state_dict().items() if not k.startswith("query")}
        params = list(twin.query.parameters())
        g = torch.autograd.grad(losses_at_start(twin, frozen), params)
        after = {k: v.clone() for k, v in twin.state_dict().items() if not k.startswith("query")}
        size = torch.cat([t.flatten() for t in g]).norm()
        w = [p.detach().clone() for p in params]
        with torch.no_grad():
            for p, t in zip(params, g, strict=True):
                p += 0.1 * t / size
        sharp = torch.autograd.grad(losses_at_start(twin, frozen), params)
        with torch.no_grad():
            for p, v, t in zip(params, w, sharp, strict=True):
                p.copy_(v)
                p.grad = t
        twin.load_state_dict({**twin.state_dict(), **after})
        base.step()
    same_weights(model, twin, rtol=1e-4, atol=1e-5)


def test_a_buffer_that_is_a_view_of_a_weight_does_not_bring_it_elsewhere():
    model = nn.Linear(5, 3)
    model.register_buffer("rows", model.weight.data[1:])
    before = values(model)
    opt = sam(model, SAM(0.3))
    opt.backward(
        lambda x, y: F.cross_entropy(model(x) + model.rows.sum(), y, reduction="none"),
        torch.ones(4, 5),
        torch.zeros(4, dtype=torch.int64),
    )
    assert_equal(values(model), before)


@pytest.mark.parametrize("nested", [False, True])
def test_an_input_that_is_changed_in_place_is_warned_of(nested):
    model = nn.Sequential(nn.ELU(inplace=True), nn.Linear(4, 3))
    opt = sam(model)
    losses, batch = (lambda b: losses_of(model)(*b["xy"]), [{"xy": data()}]) if nested else (losses_of(model), data())
    with pytest.warns(RuntimeWarning, match=r"changes one of its arguments in place.*Clone it"):
        opt.backward(losses, *batch)
    opt.zero_grad()
    sam(model, Plain()).backward(losses_of(model), *data())  # one pass sees what it changes itself


# -- several optimizers ------------------------------------------------------------------------------------------------


def several(model, method):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return SharpnessAware([Muon(matrices, lr=0.02), AdamW(others, lr=0.01)], method, model)


def test_several_optimizers_take_one_step_each():
    model, twin = network(batchnorm=False), network(batchnorm=False)  # 0.bias is noise before BatchNorm
    opt, alone = several(model, SAM(0.1)), sam(twin)
    bases = several(twin, SAM(0.1)).base.optimizers
    schedule = torch.optim.lr_scheduler.StepLR(opt, 2)
    for step in range(5):
        if step == 3:
            state = pickle.loads(pickle.dumps(opt.state_dict()))
            other = several(model, SAM(0.1))
            other.load_state_dict(state)
            opt = other
        opt.backward(losses_of(model), *data(step))
        opt.step()
        opt.zero_grad()
        alone.backward(losses_of(twin), *data(step))
        for base in bases:
            base.step()
            base.zero_grad()
        if step == 1:
            schedule.step()
            schedule.step()
            for base in bases:
                base.param_groups[0]["lr"] *= 0.1
    same_weights(model, twin, rtol=1e-5, atol=1e-6)  # the norm is summed in another order
    again_model, again = copy.deepcopy((model, opt))
    for m, o in ((model, opt), (again_model, again)):
        o.backward(losses_of(m), *data())
        o.step()
    same_weights(model, again_model)


def test_several_optimizers_that_cannot_be_one_are_refused():
    model = network()
    with refused(ValueError, "the same parameter"):
        SharpnessAware([SGD(model.parameters(), lr=0.1), AdamW(model.parameters())], SAM(), model)
    with refused(TypeError, "LBFGS"):
        SharpnessAware([torch.optim.LBFGS(model.parameters())], SAM(), model)
    opt = several(model, SAM())
    with refused(TypeError, "add_param_group of that one"):
        opt.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with refused(ValueError, "1 optimizers", "there are 2"):
        opt.load_state_dict({"state": {}, "param_groups": [], "optimizers": [{}]})
    with refused(AttributeError, "Register this hook on the one"):
        opt.register_state_dict_post_hook(lambda *_: None)


# -- feedback and errors -----------------------------------------------------------------------------------------------


def test_metrics_leave_out_what_was_not_evaluated():
    model = network()
    x, y = data()
    for ascent in (None, 0.5):
        opt = sam(model, SAM(0.1, ascent=ascent))
        feedback = opt.backward(with_logits(model), x, y)
        known = ~feedback.loss.isnan()
        assert int(known.sum()) == (8 if ascent is None else 4)
        torch.testing.assert_close(feedback.mean_loss, feedback.loss[known].mean())
        right = (feedback.outputs.argmax(1) == y)[known].float().mean()
        torch.testing.assert_close(feedback.accuracy(y), right)
        opt.zero_grad()
    with refused(TypeError, "logits of shape (n, classes)"):
        Feedback(None, torch.ones(2)).accuracy(torch.zeros(2))


def test_feedback_by_hand_needs_the_loss_alone():
    feedback = Feedback(torch.tensor([3, 1]), torch.tensor([1.0, 2.0]))
    assert bool(feedback.perturbed.isnan().all())
    with refused(TypeError, "torch.float32", "int64"):
        Feedback(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 2.0]))


def test_two_errors_of_beginners():
    model = nn.Linear(4, 1)
    opt = sam(model)
    with refused(TypeError, "opt.step got a Tensor", "opt.backward(loss_fn, *batch)"):
        opt.step(torch.ones(()))
    with refused(TypeError, "a scalar", ".squeeze(1)"):
        opt.backward(lambda x, y: (model(x).squeeze() - y.squeeze()) ** 2, torch.ones(1, 4), torch.ones(1, 1))
