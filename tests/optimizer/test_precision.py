"""Mixed precision, memory formats, compiled models and what else surrounds a step, number by number."""

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ausam import METHODS, SAM, AUSampling, Plain, SelectiveBatchSampler, SharpnessAware
from tests.helpers import few_of, make, optimizer, same_weights

X = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randint(3, (48,), generator=torch.Generator().manual_seed(2))
MIXING = ("AESAM", "LookSAM", "GSAM", "VSAM", "FriendlySAM")  # they mix gradients of two passes, or remember them


def network(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), *(middle or (nn.BatchNorm1d(16),)), nn.Tanh(), nn.Linear(16, 3))


def in_single(model):
    """The losses in single precision, and the outputs."""

    def losses(x, y):
        z = model(x)
        return F.cross_entropy(z.float(), y, reduction="none"), z

    return losses


def batch(step):
    rows = torch.arange(8) + 8 * (step % 6)
    return X[rows], Y[rows], rows


def advance(opt):
    opt.step()
    opt.zero_grad()


def plain_run(opt, model, steps, **more):
    for step in steps:
        x, y, index = batch(step)
        opt.backward(in_single(model), x, y, index=index, **more)
        advance(opt)


# -- fp16: GradScaler --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_a_scale_that_is_a_power_of_two_changes_no_bit(name, clip):
    plain, scaled = network(), network()
    a, b = optimizer(plain, make(name)), optimizer(scaled, make(name))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6, growth_interval=3)
    for step in range(14):
        x, y, index = batch(step)
        a.backward(in_single(plain), x, y, index=index)
        b.backward(in_single(scaled), x, y, index=index, backward=lambda loss: scaler.scale(loss).backward())
        if clip:
            scaler.unscale_(b)
            for model in (plain, scaled):
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        advance(a)
        scaler.step(b)
        scaler.update()
        b.zero_grad()
    assert scaler.get_scale() == 2.0**10  # it grew on the way
    same_weights(plain, scaled)


def step_of_two_passes(name):
    """A step, not the first, in which the method goes to perturbed weights."""
    model = network()
    opt, seen = optimizer(model, make(name)), 0
    for step in range(20):
        plain_run(opt, model, [step])
        if step and opt.samples_forward - seen == 16:
            return step
        seen = opt.samples_forward
    raise AssertionError(name)


@pytest.mark.filterwarnings("ignore:The first update of this pass")  # the batches are not the sampler's
@pytest.mark.parametrize("overflow", [0, 1])
@pytest.mark.parametrize("name", ["SAM", *MIXING])
def test_an_overflow_in_either_pass_skips_the_whole_step(name, overflow):
    clean, model = network(), network()
    reference, opt = optimizer(clean, make(name)), optimizer(model, make(name))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6, growth_interval=10**6)
    sampler = SelectiveBatchSampler(48, 8, AUSampling(ramp=30))
    next(iter(sampler))
    hit, passes = step_of_two_passes(name), 0

    def backward(loss):
        nonlocal passes
        inf = float("inf") if step == hit and passes == overflow else 1.0
        passes += 1
        (scaler.scale(loss) * inf).backward()

    for step in range(hit + 4):
        passes = 0
        x, y, index = batch(step)
        before, memory = copy.deepcopy(model.state_dict()), copy.deepcopy(opt.state_dict()["ausam"]["memory"]["values"])
        visits = sampler.scores.count.clone()
        with pytest.warns(RuntimeWarning, match="not finite") if step == hit else contextlib.nullcontext():
            feedback = opt.backward(in_single(model), x, y, index=index, backward=backward)
        sampler.update(feedback)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        if step != hit:
            plain_run(reference, clean, [step])
            continue
        # The step leaves no trace but a smaller scale and, where both losses were measured, the scores.
        for key, value in model.state_dict().items():
            torch.testing.assert_close(value, before[key], rtol=0, atol=0, msg=key)
        _same_memory(opt.state_dict()["ausam"]["memory"]["values"], memory)
        measured = feedback.sharpness.isfinite()
        assert bool(measured.all() if overflow == 1 else not measured.any())
        assert (sampler.scores.count - visits).tolist() == [int(i in index[measured]) for i in range(48)]
        assert bool((sampler.scores.mean.isfinite() | (sampler.scores.count == 0)).all())
        assert (opt.steps, opt.skipped, scaler.get_scale()) == (hit, 1, 2.0**5)
    assert (opt.steps, opt.skipped) == (hit + 3, 1)
    same_weights(model, clean)


def _same_memory(a, b):
    assert a.keys() == b.keys()
    for key in a:
        left, right = (v if isinstance(v, list) else [v] for v in (a[key], b[key]))
        for x, y in zip(left, right, strict=True):
            if isinstance(x, torch.Tensor):
                assert torch.equal(x, y), key
            else:
                assert x == y, key


# -- bf16 --------------------------------------------------------------------------------------------------------------


def sam_by_hand(model, rho, lr, steps, bf16=False):
    """SGD with SAM's gradient, written out; both passes inside autocast if it is asked for."""
    params = list(model.parameters())
    for step in steps:
        x, y, _ = batch(step)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            g = torch.autograd.grad(in_single(model)(x, y)[0].mean(), params)
        length = torch.stack([t.norm() for t in g]).norm()
        old = [p.detach().clone() for p in params]
        with torch.no_grad():
            for p, t in zip(params, g, strict=True):
                p.add_(t * (rho / (length + 1e-12)))
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            g = torch.autograd.grad(in_single(model)(x, y)[0].mean(), params)
        with torch.no_grad():
            for p, w, t in zip(params, old, g, strict=True):
                p.copy_(w - lr * t)


@pytest.mark.parametrize("around", ["the call", "the losses"])
def test_bf16_autocast(around):
    model, hand = network(nn.Identity()), network(nn.Identity())
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), SAM(0.1), model)

    def inside(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return in_single(model)(x, y)

    for step in range(6):
        x, y, _ = batch(step)
        if around == "the call":
            with torch.autocast("cpu", torch.bfloat16):
                opt.backward(in_single(model), x, y)
        else:
            opt.backward(inside, x, y)
        advance(opt)
    sam_by_hand(hand, 0.1, 0.1, range(6), bf16=True)
    exact = network(nn.Identity())
    sam_by_hand(exact, 0.1, 0.1, range(6))
    for p, q in zip(model.parameters(), hand.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    assert (
        max(float((p - q).detach().abs().max()) for p, q in zip(model.parameters(), exact.parameters(), strict=True))
        > 1e-5
    )


# -- replay ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closure", [False, True])
def test_replay_draws_the_same_dropout_masks_in_both_passes(closure):
    x, y, _ = batch(0)
    for replay in (False, True):
        model = network(nn.Dropout(0.5))
        opt = optimizer(model, SAM(rho=0.0), replay=replay)
        if closure:
            seen = []

            def once(model=model, opt=opt, seen=seen):
                opt.zero_grad()
                loss = in_single(model)(x, y)[0].mean()
                loss.backward()
                seen.append(loss.detach())
                return loss

            opt.step(once)
            first, second = seen
        else:
            feedback = opt.backward(in_single(model), x, y)
            first, second = feedback.loss, feedback.perturbed
        assert torch.equal(first, second) == replay


def test_replay_leaves_the_random_numbers_where_one_pass_leaves_them():
    after = []
    for method in (Plain(), SAM(0.1)):
        model = network(nn.Dropout(0.5))
        opt = optimizer(model, method, replay=True)
        torch.manual_seed(5)
        plain_run(opt, model, range(3))
        after.append(torch.rand(4))
    assert torch.equal(*after)


# -- memory format, compiling ------------------------------------------------------------------------------------------


def images(memory):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))
    return net.to(memory_format=memory), torch.randn(6, 3, 8, 8).to(memory_format=memory), torch.arange(6) % 3


@pytest.mark.parametrize("name", ["SAM", "ASAM", "GSAM"])
def test_channels_last_stays_and_changes_nothing(name):
    models = []
    for memory in (torch.contiguous_format, torch.channels_last):
        model, x, y = images(memory)
        opt = optimizer(model, make(name))
        for _ in range(3):
            opt.backward(in_single(model), x, y)
            assert model[0].weight.grad.is_contiguous(memory_format=memory)
            advance(opt)
        assert model[0].weight.is_contiguous(memory_format=memory)
        models.append(model)
    for p, q in zip(*(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", few_of(["SAM", "ASAM", "ESAM", "MESA"], "SAM"))
def test_a_compiled_model_gives_the_numbers_of_the_plain_one(name):
    torch._dynamo.reset()
    plain, inner = network(), network()
    compiled = torch.compile(inner, backend="aot_eager")
    plain_run(optimizer(plain, make(name)), plain, range(5))
    plain_run(optimizer(compiled, make(name)), compiled, range(5))
    for p, q in zip(plain.state_dict().values(), inner.state_dict().values(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


# -- what surrounds a step ---------------------------------------------------------------------------------------------


def test_clipping_limits_the_gradient_of_the_step_and_not_the_perturbation():
    model, hand = network(nn.Identity()), network(nn.Identity())
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    x, y, _ = batch(0)
    opt.backward(in_single(model), x, y)
    measured = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    advance(opt)
    start = [p.detach().clone() for p in hand.parameters()]
    sam_by_hand(hand, 0.1, 1.0, [0])
    g = [w - p.detach() for w, p in zip(start, hand.parameters(), strict=True)]
    length = torch.stack([t.norm() for t in g]).norm()
    torch.testing.assert_close(measured, length, rtol=1e-4, atol=0)
    for p, w, t in zip(model.parameters(), start, g, strict=True):
        torch.testing.assert_close(p.detach(), w - 0.1 * 0.01 / length * t, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_frozen_layers_neither_move_nor_count(name):
    model = network(nn.Identity())
    model[0].requires_grad_(False)
    body, head = copy.deepcopy(model[:3]), copy.deepcopy(model[3])
    before = model[0].weight.clone()
    plain_run(optimizer(model, make(name)), model, range(4))
    assert torch.equal(model[0].weight, before)
    # The head alone, on what the body says: the norm of the perturbation is that of the head's gradient.
    opt = optimizer(head, make(name))
    for step in range(4):
        x, y, index = batch(step)
        opt.backward(in_single(head), body(x), y, index=index)
        advance(opt)
    if name != "ESAM":  # it draws a coin for each tensor that it may perturb, in the order of all
        for p, q in zip(model[3].parameters(), head.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
