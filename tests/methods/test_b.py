"""SAF, MESA, RST, AESAM and MomentumSAM step by step against slow, literal transcriptions of their formulas."""

import copy
import io
import math
import os
import re
import tempfile

import pytest
import torch
from torch import nn
from torch.nn import functional

from ausam import AESAM, ASAM, ESAM, MESA, RST, SAF, SAM, LookSAM, MomentumSAM, Plain, SharpnessAware
from ausam.random import generator

EXACT = {"rtol": 0, "atol": 1e-11}  # float64: sums in another order differ in the last digits only
GUARD = 1e-12
D = torch.float64


def network(batchnorm=True):
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(7)] if batchnorm else []
    return nn.Sequential(nn.Linear(5, 7), *middle, nn.Tanh(), nn.Linear(7, 3)).double()


def batches(steps, n=9, seed=1):
    rng = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 5, generator=rng, dtype=D), torch.randint(3, (n,), generator=rng)) for _ in range(steps)]


def with_logits(model):
    def losses(x, y):
        z = model(x)
        return functional.cross_entropy(z, y, reduction="none"), z

    return losses


def sgd(model, momentum=0.9):
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=momentum, weight_decay=1e-2)


def same(model, twin):
    for (name, a), b in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, **EXACT, msg=lambda m, name=name: f"{name}: {m}")


# -- pieces of the transcriptions -------------------------------------------------------------------------------------


def slow_ce(z, y):
    return torch.stack([z[i].exp().sum().log() - z[i, y[i]] for i in range(len(y))])


def slow_kl(old, new, tau):
    """KL of one sample, class by class."""
    p, q = (old / tau).exp() / (old / tau).exp().sum(), (new / tau).exp() / (new / tau).exp().sum()
    return sum(p[c] * (p[c].log() - q[c].log()) for c in range(len(p)))


def slow_gradient(model, x, y):
    return torch.autograd.grad(slow_ce(model(x), y).mean(), list(model.parameters()))


def length(vector):
    return math.sqrt(sum(float((t**2).sum()) for t in vector))


def slow_moved(model, x, y, e):
    """The gradient at w + e; weights and statistics are left as they were."""
    kept = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for p, t in zip(model.parameters(), e, strict=True):
            p += t
    g = slow_gradient(model, x, y)
    model.load_state_dict(kept)
    return g


def slow_sam(model, x, y, g, rho):
    return slow_moved(model, x, y, [rho * t / (length(g) + GUARD) for t in g])


def apply(base, g):
    for p, t in zip(base.param_groups[0]["params"], g, strict=True):
        p.grad = t.clone()
    base.step()
    base.zero_grad()


def poison(opt, loss_fn, n=4, **more):
    """A batch of NaN, as a loop would meet it."""
    opt.backward(loss_fn, torch.full((n, 5), torch.nan, dtype=D), torch.zeros(n, dtype=torch.int64), **more)
    opt.step()
    opt.zero_grad()


# -- SAF --------------------------------------------------------------------------------------------------------------

SAMPLES = 14


def saf_plan(epochs):
    """Batches of indices; about a third of the samples is left out of each epoch, the largest of the first one."""
    rng = torch.Generator().manual_seed(3)
    for epoch in range(epochs):
        order = torch.randperm(SAMPLES, generator=rng)[:10]
        if epoch == 0:
            order = torch.arange(10)
        yield from order.split(5)


@pytest.mark.filterwarnings("ignore:The loss or the gradient of step")
def test_saf_follows_the_formula_visit_by_visit():
    lam, tau, gap, start = 0.7, 2.0, 2, 3
    (x, y), *_ = batches(1, SAMPLES)
    model, twin = network(), network()
    opt, base = SharpnessAware(sgd(model), SAF(lam, tau, gap, start), model), sgd(twin)
    history = {i: [] for i in range(SAMPLES)}  # of each sample: its logits, visit by visit
    broken = (5, 3)  # this visit of sample 5 delivers an infinite logit (beside a finite loss)
    terms = missing = stale = 0
    for step, index in enumerate(saf_plan(14)):
        spoiled = torch.tensor([(int(i), len(history[int(i)])) == broken for i in index])

        def losses(x, y, spoiled=spoiled):
            z = model(x)
            shown = torch.where(spoiled[:, None], torch.inf, z)
            return functional.cross_entropy(z, y, reduction="none"), shown

        if step in (0, 7, 20):  # thrown away: no visit is counted, nothing is remembered
            poison(opt, with_logits(model), len(index), index=index)
        opt.backward(losses, x[index], y[index], index=index)
        opt.step()
        opt.zero_grad()

        z = twin(x[index])
        loss = slow_ce(z, y[index]).mean()
        for row, i in enumerate(index.tolist()):
            visit = len(history[i])
            if visit > start and visit >= gap and not spoiled[row]:
                old = history[i][visit - gap]
                if old is None:
                    stale += 1
                else:
                    terms += 1
                    loss = loss + lam * tau**2 * slow_kl(old, z[row], tau) / len(index)
            else:
                missing += 1
        for row, i in enumerate(index.tolist()):
            history[i].append(None if spoiled[row] else z[row].detach().clone())
        apply(base, torch.autograd.grad(loss, list(twin.parameters())))
        same(model, twin)
        memory = opt.state_dict()["ausam"]["memory"]["values"]
        assert bool(memory["logits"].isfinite().all())
    assert terms > 40
    assert missing > 40
    assert stale == 1
    assert opt.skipped == 3
    assert memory["visits"].tolist() == [len(history[i]) for i in range(SAMPLES)]


def test_saf_needs_the_gap_itself_even_when_start_is_smaller():
    (x, y), *_ = batches(1, 4)
    model, plain = network(), network()
    saf, sgd_alone = SharpnessAware(sgd(model), SAF(5.0, 2.0, 3, 0), model), SharpnessAware(sgd(plain), Plain(), plain)
    for visit in range(5):
        for opt, m in ((saf, model), (sgd_alone, plain)):
            opt.backward(with_logits(m), x, y, index=torch.arange(4))
            opt.step()
            opt.zero_grad()
        equal = all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
        assert equal == (visit < 3)


@pytest.mark.filterwarnings("ignore:The loss or the gradient of step")
@pytest.mark.parametrize("last", [3, 9])  # 9: the memory would have to grow
def test_saf_remembers_nothing_of_a_step_that_is_thrown_away_for_its_loss_alone(last):
    (x, y), *_ = batches(1, 4)
    model = network()
    opt = SharpnessAware(sgd(model), SAF(gap=1), model)
    opt.backward(with_logits(model), x, y, index=torch.arange(4))
    before = copy.deepcopy(opt.state_dict()["ausam"]["memory"]["values"])
    opt.zero_grad()
    unlucky = torch.tensor([0.0, torch.inf, 0.0, 0.0], dtype=D)
    opt.backward(lambda x, y: (model(x).sum(1) + unlucky, model(x)), x, y, index=torch.tensor([0, 1, 2, last]))
    assert opt.skipped == 1
    after = opt.state_dict()["ausam"]["memory"]["values"]
    assert all(torch.equal(before[k], after[k]) for k in ("logits", "stamps", "visits"))


def test_saf_weights_the_term_of_a_sample_with_its_loss():
    (x, y), *_ = batches(1, 4)
    model = network(batchnorm=False)
    opt = SharpnessAware(sgd(model), SAF(1.0, 2.0, 1, 0), model)
    weight = torch.tensor([2.0, 0.0, 1.0, 0.5], dtype=D)
    opt.backward(with_logits(model), x, y, index=torch.arange(4))
    opt.zero_grad()
    old = model(x).detach()
    with torch.no_grad():
        model[0].bias += 0.3
    opt.backward(with_logits(model), x, y, index=torch.arange(4), weight=weight)
    z = model(x)
    each = torch.stack([slow_ce(z, y)[i] + 4 * slow_kl(old[i], z[i], 2.0) for i in range(4)])
    wanted = torch.autograd.grad((weight * each).mean(), list(model.parameters()))
    for p, g in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, g, **EXACT)


def test_saf_memory_may_live_elsewhere_and_must_fit():
    (x, y), *_ = batches(1, 4)
    model = network()
    opt = SharpnessAware(sgd(model), SAF(gap=2, device="cpu"), model)
    opt.backward(with_logits(model), x, y, index=[3, 0, 1, 2])
    memory = opt.state_dict()["ausam"]["memory"]["values"]
    assert memory["logits"].shape == (4, 3, 3)
    other = SharpnessAware(sgd(model), SAF(gap=3), model)
    other.load_state_dict(opt.state_dict())
    with pytest.raises(
        ValueError,
        match=re.escape(
            "SAF: the memory holds (3, 3) numbers per sample (gap + 1, classes), but (4, 3) are needed. Resume with "
            "the gap and the classes of the saved run, or begin afresh."
        ),
    ):
        other.backward(with_logits(model), x, y, index=[3, 0, 1, 2])


# -- MESA -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The loss or the gradient of step")
@pytest.mark.parametrize("micro", [1, 3])
def test_mesa_follows_the_formula(micro):
    lam, tau, decay, start = 1.5, 2.0, 0.7, 2
    model, twin = network(), network()
    opt, base = SharpnessAware(sgd(model), MESA(lam, tau, decay, start), model), sgd(twin)
    teacher = copy.deepcopy(twin).eval()
    data = batches(8 * micro)
    for step in range(8):
        if step in (0, 1, 5):  # thrown away: the teacher neither follows twice nor misses a step
            poison(opt, with_logits(model))
        for x, y in data[step * micro : (step + 1) * micro]:
            opt.backward(with_logits(model), x, y)
        opt.step()
        opt.zero_grad()

        total = [torch.zeros_like(p) for p in twin.parameters()]
        for x, y in data[step * micro : (step + 1) * micro]:
            with torch.no_grad():
                old = teacher(x)
            z = twin(x)
            loss = slow_ce(z, y).mean()
            if step >= start:
                loss = loss + lam * tau**2 * sum(slow_kl(old[i], z[i], tau) for i in range(len(y))) / len(y)
            for t, g in zip(total, torch.autograd.grad(loss, list(twin.parameters())), strict=True):
                t += g
        apply(base, total)
        new = twin.state_dict()
        mixed = {
            k: decay * t + (1 - decay) * new[k] if t.is_floating_point() else t for k, t in teacher.state_dict().items()
        }
        teacher.load_state_dict(mixed)
        same(model, twin)
        assert all(m.training for m in model.modules())
    assert opt.skipped == 3
    assert opt.samples_backward == 8 * micro * 9 + 3 * 4
    # The teacher of the last step, as the next one will find it, is one average behind.
    memory = opt.state_dict()["ausam"]["memory"]["values"]
    for kept, name in zip(memory["teacher"], [n for n, _ in model.named_parameters()], strict=True):
        behind = (dict(teacher.named_parameters())[name] - (1 - decay) * dict(twin.named_parameters())[name]) / decay
        torch.testing.assert_close(kept, behind, **EXACT)


def test_mesa_keeps_the_teacher_finer_than_bfloat16():
    model = nn.Linear(2, 3).bfloat16()
    opt = SharpnessAware(sgd(model), MESA(start=0), model)
    opt.backward(with_logits(model), torch.ones(4, 2, dtype=torch.bfloat16), torch.tensor([0, 1, 2, 0]))
    assert [t.dtype for t in opt.state_dict()["ausam"]["memory"]["values"]["teacher"]] == [torch.float32] * 2


# -- RST --------------------------------------------------------------------------------------------------------------


def slow_coin(seed, step):
    return float(torch.rand((), generator=generator(seed, step, 1)))


def slow_probability(schedule, p, t, total):
    if schedule == "constant":
        return p
    if schedule == "piecewise":
        return 0.0 if t < (1 - p) * total else 1.0
    low, high = (0.0, 2 * p) if p <= 0.5 else (2 * p - 1, 1.0)
    if schedule == "linear":
        return low + (high - low) * t / total
    return low + (high - low) * (1 - math.cos(math.pi * t / total)) / 2


@pytest.mark.parametrize("gamma", [1.0, 2.0, 0.3])
@pytest.mark.parametrize("schedule", ["constant", "piecewise", "linear", "trigonometric"])
def test_rst_follows_the_formula(schedule, gamma):
    p, rho, total, seed = 0.75, 0.2, 16, 5
    model, twin = network(), network()
    method = RST(SAM(rho), p, schedule, gamma, None if schedule == "constant" else total)
    opt, base = SharpnessAware(sgd(model), method, model, seed=seed), sgd(twin)
    drawn = 0
    for step, (x, y) in enumerate(batches(total)):
        feedback = opt.backward(with_logits(model), x, y)
        opt.step()
        opt.zero_grad()
        g = slow_gradient(twin, x, y)
        sharp = slow_coin(seed, step) < slow_probability(schedule, p, step, total)
        if sharp:
            g = [(1 - gamma) * a + gamma * b for a, b in zip(g, slow_sam(twin, x, y, g, rho), strict=True)]
        apply(base, g)
        same(model, twin)
        assert bool(feedback.perturbed.isfinite().all()) == sharp
        assert bool(feedback.perturbed.isnan().all()) != sharp
        drawn += sharp
    assert 0 < drawn < total
    assert opt.samples_forward == opt.samples_backward == 9 * (total + drawn)  # never a third pass


def coins(method, steps, micro=1, seed=0):
    """Whether each step (each micro-batch of it) evaluated the perturbed loss."""
    model = nn.Linear(1, 2)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=1e-3), method, model, seed=seed)
    fallen = []
    for _ in range(steps):
        found = [opt.backward(with_logits(model), torch.ones(1, 1), torch.tensor([0])) for _ in range(micro)]
        opt.step()
        opt.zero_grad()
        fallen.append([bool(f.perturbed.isfinite().all()) for f in found])
    return torch.tensor(fallen)


def test_rst_draws_as_often_as_it_says_and_alike_in_all_micro_batches():
    fallen = coins(RST(p=0.3), 600, micro=2)
    assert torch.equal(fallen[:, 0], fallen[:, 1])
    share = float(fallen[:, 0].float().mean())
    assert abs(share - 0.3) < 0.056  # three standard deviations
    assert not torch.equal(fallen[:60], coins(RST(p=0.3), 60, micro=2, seed=1))
    assert not coins(RST(p=0.0), 50).any()
    assert coins(RST(p=1.0), 50).all()


@pytest.mark.parametrize("p", [0.25, 0.5, 0.8])
@pytest.mark.parametrize("schedule", ["piecewise", "linear", "trigonometric"])
def test_rst_schedules_rise_and_cost_what_passes_says(schedule, p):
    total = 400
    fallen = coins(RST(p=p, schedule=schedule, total_steps=total), total)[:, 0].float()
    forward, backward = RST(p=p, schedule=schedule, total_steps=total).passes
    assert forward == backward == 1 + p
    assert abs(float(fallen.mean()) - p) < 0.075  # three standard deviations
    assert float(fallen[:100].mean()) < float(fallen[-100:].mean())


def test_rst_coin_is_independent_of_what_the_inner_method_draws():
    """ESAM draws its tensors from the same (seed, step): with the coin's own number it would never choose freely."""
    model = nn.Linear(1, 2)
    seen = []

    class Spy(ESAM):
        def gradient(self, step):
            seen.append(float(torch.rand((), generator=step.rng())))
            return super().gradient(step)

    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=1e-3), RST(Spy(), p=0.3), model)
    for _ in range(300):
        opt.backward(with_logits(model), torch.ones(2, 1), torch.tensor([0, 1]))
        opt.step()
        opt.zero_grad()
    assert len(seen) > 50
    assert sum(s > 0.3 for s in seen) > 0.5 * len(seen)


# -- AESAM ------------------------------------------------------------------------------------------------------------


def slow_threshold(sizes, means, delta, lambda1, lambda2, t, total):
    """Is the last of ``sizes`` over the threshold? Averages as sums with weights delta^age."""
    weights = [delta**age for age in range(len(sizes))][::-1]
    means.append(sum(w * s for w, s in zip(weights, sizes, strict=True)) / sum(weights))
    spread = sum(w * (s - m) ** 2 for w, s, m in zip(weights, sizes, means, strict=True)) / sum(weights)
    c = t / total * lambda1 + (1 - t / total) * lambda2
    return sizes[-1] >= means[-1] + c * math.sqrt(spread)


@pytest.mark.filterwarnings("ignore:The loss or the gradient of step")
@pytest.mark.parametrize("look", [False, True])
def test_aesam_takes_the_branches_of_the_formula(look):
    rho, delta, lambda1, lambda2, total, alpha = 0.2, 0.8, -1.2, 0.9, 24, 0.6
    model, twin = network(), network()
    inner = LookSAM(rho, k=3, alpha=alpha) if look else SAM(rho)
    opt = SharpnessAware(sgd(model), AESAM(inner, delta, lambda1, lambda2, total_steps=total), model)
    base, sizes, means, taken, vertical = sgd(twin), [], [], [], None
    for step, (x, y) in enumerate(batches(total)):
        if step in (0, 9):  # thrown away: the averages must not see it
            poison(opt, with_logits(model))
        feedback = opt.backward(with_logits(model), x, y)
        opt.step()
        opt.zero_grad()
        g = slow_gradient(twin, x, y)
        sizes.append(length(g) ** 2)
        sharp = slow_threshold(sizes, means, delta, lambda1, lambda2, step, total)
        if sharp:
            g_s = slow_sam(twin, x, y, g, rho)
            along = sum(float((a * b).sum()) for a, b in zip(g_s, g, strict=True)) / (length(g) + GUARD) ** 2
            vertical = [a - along * b for a, b in zip(g_s, g, strict=True)]
            g = g_s
        elif look:
            ratio = alpha * length(g) / (length(vertical) + GUARD)
            g = [a + ratio * b for a, b in zip(g, vertical, strict=True)]
        apply(base, g)
        same(model, twin)
        assert bool(feedback.perturbed.isfinite().all()) == sharp
        taken.append(sharp)
    assert taken[0]
    assert 5 < sum(taken) < total - 5
    assert sum(taken[: total // 2]) < sum(taken[total // 2 :])
    assert opt.samples_backward == 9 * (total + sum(taken)) + 2 * 4  # the pass at w is made once


def test_aesam_goes_on_with_asam_as_asam_itself_does():
    model, twin = network(), network()
    always = AESAM(ASAM(rho=0.5), lambda1=-1e9, lambda2=-1e9, total_steps=10)
    ours, theirs = SharpnessAware(sgd(model), always, model), SharpnessAware(sgd(twin), ASAM(rho=0.5), twin)
    for x, y in batches(4):
        for opt, m in ((ours, model), (theirs, twin)):
            opt.backward(with_logits(m), x, y)
            opt.step()
            opt.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))


@pytest.mark.parametrize("growth", [1, 2])
def test_aesam_judges_the_gradient_without_the_loss_scale(growth):
    """The scale doubles every step or two; taken for a growing gradient, that would make every step a SAM step."""
    plain, scaled = network(), network()
    method = AESAM(SAM(0.2), total_steps=20)
    opts = [SharpnessAware(sgd(m), method, m) for m in (plain, scaled)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=growth)
    taken = []
    for x, y in batches(20):
        first = opts[0].backward(with_logits(plain), x, y)
        opts[0].step()
        second = opts[1].backward(with_logits(scaled), x, y, backward=lambda loss: scaler.scale(loss).backward())
        scaler.step(opts[1])
        scaler.update()
        for opt in opts:
            opt.zero_grad()
        assert torch.equal(first.perturbed.isnan(), second.perturbed.isnan())
        taken.append(bool(first.perturbed.isfinite().all()))
    assert 3 < sum(taken) < 17
    same(plain, scaled)


# -- MomentumSAM ------------------------------------------------------------------------------------------------------


def test_momentumsam_with_sgd_follows_the_formula():
    rho, lr, mu, decay = 0.7, 0.2, 0.9, 1e-2
    model, twin = network(), network()
    opt = SharpnessAware(sgd(model), MomentumSAM(rho), model)
    v = None
    for x, y in batches(6):
        opt.backward(with_logits(model), x, y)
        opt.step()
        opt.zero_grad()
        e = (
            [torch.zeros_like(p) for p in twin.parameters()]
            if v is None
            else [-rho * t / (length(v) + GUARD) for t in v]
        )
        statistics = slow_statistics_at(twin, x, e)
        g = slow_moved(twin, x, y, e)
        with torch.no_grad():
            g = [a + decay * p for a, p in zip(g, twin.parameters(), strict=True)]
            v = g if v is None else [mu * a + b for a, b in zip(v, g, strict=True)]
            for p, t in zip(twin.parameters(), v, strict=True):
                p -= lr * t
        twin.load_state_dict(statistics, strict=False)
        same(model, twin)


def slow_statistics_at(twin, x, e):
    """The buffers after a training-mode forward at w + e: the only pass of the step, so it moves them."""
    moved = copy.deepcopy(twin)
    with torch.no_grad():
        for p, t in zip(moved.parameters(), e, strict=True):
            p += t
        moved(x)
    return dict(moved.named_buffers())


def test_momentumsam_with_adam_follows_the_formula():
    rho, lr, b1, b2, eps = 0.7, 0.05, 0.9, 0.99, 1e-8
    model, twin = network(batchnorm=False), network(batchnorm=False)
    opt = SharpnessAware(torch.optim.Adam(model.parameters(), lr=lr, betas=(b1, b2), eps=eps), MomentumSAM(rho), model)
    m = [torch.zeros_like(p) for p in twin.parameters()]
    s = [torch.zeros_like(p) for p in twin.parameters()]
    for t, (x, y) in enumerate(batches(6), start=1):
        opt.backward(with_logits(model), x, y)
        opt.step()
        opt.zero_grad()
        g = slow_moved(twin, x, y, [-rho * a / (length(m) + GUARD) for a in m])
        m = [b1 * a + (1 - b1) * b for a, b in zip(m, g, strict=True)]
        s = [b2 * a + (1 - b2) * b**2 for a, b in zip(s, g, strict=True)]
        with torch.no_grad():
            for p, a, b in zip(twin.parameters(), m, s, strict=True):
                p -= lr * (a / (1 - b1**t)) / ((b / (1 - b2**t)).sqrt() + eps)
        same(model, twin)


def test_momentumsam_moves_against_the_momentum_and_calls_its_only_loss_the_loss():
    """f(w) = w^2 / 2 at w = 1 with v = 1: the gradient of the second step is 1 - lr - rho, not 1 - lr + rho."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), MomentumSAM(0.3), model)

    def losses(x):
        return (model(x) ** 2 / 2).squeeze(1)

    first = opt.backward(losses, torch.ones(1, 1, dtype=D))
    assert model.weight.grad.item() == pytest.approx(1.0)
    opt.step()
    opt.zero_grad()
    second = opt.backward(losses, torch.ones(1, 1, dtype=D))
    assert model.weight.grad.item() == pytest.approx(0.9 - 0.3)
    assert model.weight.item() == pytest.approx(0.9)
    assert float(first.loss) == pytest.approx(0.5)
    assert float(second.loss) == pytest.approx(0.18)
    assert bool(second.perturbed.isnan().all())


def test_momentumsam_says_so_when_there_is_no_momentum():
    model = network()
    opt = SharpnessAware(sgd(model, momentum=0.0), MomentumSAM(), model)
    (x, y), *_ = batches(1)
    opt.backward(with_logits(model), x, y)
    opt.step()
    with pytest.raises(
        RuntimeError,
        match=re.escape(
            "MomentumSAM: the base optimizer has taken a step and still has no momentum to move along. "
            "Use SGD(..., momentum=0.9), Adam or AdamW."
        ),
    ):
        opt.backward(with_logits(model), x, y)


# -- all five ---------------------------------------------------------------------------------------------------------

FIVE = [
    SAF(gap=1, start=0),
    MESA(decay=0.8, start=2),
    RST(SAM(0.2), schedule="linear", gamma=2.0, total_steps=14),
    AESAM(SAM(0.2), total_steps=14),
    AESAM(LookSAM(0.2), total_steps=14),
    MomentumSAM(0.5),
]


def train(opt, model, data, index):
    for x, y in data:
        opt.backward(with_logits(model), x, y, index=index)
        opt.step()
        opt.zero_grad()


def leaves(value):
    if isinstance(value, dict):
        return [leaf for k in sorted(value, key=str) for leaf in leaves(value[k])]
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, (list, tuple)) else [value]


@pytest.mark.parametrize("method", FIVE, ids=repr)
def test_resume_in_the_middle_is_bit_for_bit(method):
    data, index = batches(14), torch.arange(9)
    straight, halfway, resumed = network(), network(), network()
    opt = SharpnessAware(sgd(straight), method, straight)
    train(opt, straight, data, index)

    first = SharpnessAware(sgd(halfway), method, halfway)
    train(first, halfway, data[:6], index)
    file = io.BytesIO()
    torch.save({"model": halfway.state_dict(), "opt": first.state_dict()}, file)
    file.seek(0)
    train(first, halfway, data[6:9], index)  # going on must not reach into what was saved
    saved = torch.load(file, weights_only=True)
    resumed.load_state_dict(saved["model"])
    second = SharpnessAware(sgd(resumed), method, resumed)
    second.load_state_dict(saved["opt"])
    train(second, resumed, data[6:], index)

    ours = leaves([straight.state_dict(), opt.state_dict()])
    theirs = leaves([resumed.state_dict(), second.state_dict()])
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("method", [SAF(), MESA()], ids=repr)
def test_outputs_are_asked_for_word_for_word(method):
    model = network()
    opt = SharpnessAware(sgd(model), method, model)
    (x, y), *_ = batches(1)
    name = type(method).__name__
    with pytest.raises(
        TypeError,
        match=re.escape(
            "This method needs the model's outputs, but loss_fn returned the losses alone. Return both: "
            'z = model(x); return F.cross_entropy(z, y, reduction="none"), z.'
        ),
    ):
        opt.backward(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"), x, y, index=torch.arange(9))
    with pytest.raises(
        TypeError,
        match=re.escape(
            f"{name}: the outputs are of shape (9,), but logits of shape (n, classes) are needed. "
            'Return them from loss_fn: z = model(x); return F.cross_entropy(z, y, reduction="none"), z.'
        ),
    ):
        opt.backward(lambda x, y: (model(x).sum(1),) * 2, x, y, index=torch.arange(9))
    with pytest.raises(TypeError, match=f"{name}: the outputs are a dict, but logits"):
        opt.backward(lambda x, y: (model(x).sum(1), {}), x, y, index=torch.arange(9))
    with pytest.raises(RuntimeError, match="This method needs per-sample losses"):
        opt.step(lambda: torch.zeros(()))


def test_saf_asks_for_the_index():
    model = network()
    opt = SharpnessAware(sgd(model), SAF(), model)
    (x, y), *_ = batches(1)
    with pytest.raises(
        ValueError,
        match=re.escape(
            "SAF remembers the logits of each sample, but opt.backward was not told which samples these are. "
            "Pass index=index, the dataset index that Indexed(dataset) delivers."
        ),
    ):
        opt.backward(with_logits(model), x, y)


class Closed:
    """A method that cannot be entered half-way."""

    sharpness = "always"
    passes = (2.0, 2.0)

    def gradient(self, step):
        return step.gradient()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: RST(schedule="linear"),
            "RST: total_steps is None, but the linear schedule rises over the whole training. "
            "Pass its number of optimizer steps: total_steps=epochs * len(loader).",
        ),
        (lambda: RST(SAM), "RST: inner is SAM, but an instance of a method such as SAM(rho=0.05) is needed."),
        (
            lambda: RST(Plain()),
            "RST: inner is Plain, which never evaluates the loss at perturbed weights, so there is nothing to choose "
            "between. Use SAM() or another method that does.",
        ),
        (
            lambda: RST(Closed(), gamma=2.0),
            "RST: inner is Closed, which cannot start from a gradient that exists already: it has no second(step, g). "
            "Use SAM(), ASAM() or another method that has.",
        ),
        (
            lambda: AESAM(Closed(), total_steps=9),
            "AESAM: inner is Closed, which cannot start from a gradient that exists already: it has no "
            "second(step, g). Use SAM(), ASAM() or another method that has.",
        ),
    ],
)
def test_settings_are_refused_word_for_word(build, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build()


def test_aesam_wants_to_know_how_long_the_training_is():
    with pytest.raises(TypeError, match="total_steps"):
        AESAM()


# -- two processes ----------------------------------------------------------------------------------------------------


def in_two_processes(rank, where, queue):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo", init_method=f"file://{where}", rank=rank, world_size=2)
    for method in (RST(SAM(0.2), gamma=2.0), AESAM(SAM(0.2), total_steps=12)):
        model = nn.parallel.DistributedDataParallel(network())
        opt = SharpnessAware(sgd(model), method, model)
        data = iter(batches(24, seed=10 + rank))
        taken = []
        for _ in range(12):
            with model.no_sync():  # as frameworks accumulate: nobody averages the gradient, yet all must decide alike
                taken.append(bool(opt.backward(with_logits(model), *next(data)).perturbed.isfinite().all()))
            opt.zero_grad()
            taken.append(bool(opt.backward(with_logits(model), *next(data)).perturbed.isfinite().all()))
            opt.step()
            opt.zero_grad()
        queue.put((rank, type(method).__name__, taken, [p.detach().tolist() for p in model.parameters()]))
    torch.distributed.destroy_process_group()


def test_two_processes_decide_alike_even_where_gradients_are_not_averaged():
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            context.Process(target=in_two_processes, args=(r, f"{folder}/meet", queue), daemon=True) for r in range(2)
        ]
        for w in workers:
            w.start()
        found = {}
        for _ in range(4):
            rank, name, taken, weights = queue.get(timeout=300)
            found[rank, name] = (taken, weights)
        for w in workers:
            w.join()
    for name in ("RST", "AESAM"):
        assert found[0, name] == found[1, name]
        assert len(set(found[0, name][0])) == 2
