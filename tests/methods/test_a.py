"""GSAM, FriendlySAM, LookSAM, ESAM, KSAM and VSAM against slow transcriptions of their formulas, step by step."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ausam import ESAM, GSAM, KSAM, SAM, VSAM, FriendlySAM, LookSAM, Plain, SharpnessAware
from ausam.methods._quota import drift, due, observe, push, renew
from ausam.random import generator
from ausam.tensors import add, average, dot, hardest, matching, orthogonal

LR, MOMENTUM, SEED = 0.2, 0.9, 11


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def batch(step, n=8):
    g = torch.Generator().manual_seed(100 + step)
    return torch.randn(n, 4, generator=g, dtype=torch.float64), torch.randint(3, (n,), generator=g)


def ours(method, steps, n=8):
    """The weights after every step, as the library takes them."""
    model = network()
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM), method, model, seed=SEED)
    path = []
    for step in range(steps):
        opt.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), *batch(step, n))
        opt.step()
        opt.zero_grad()
        path.append([p.detach().clone() for p in model.parameters()])
    return path


# -- the slow side: lists of tensors, torch.autograd.grad, nothing of the library ----------------------------------


def losses_of(w, x, y):
    z = torch.tanh(x @ w[0].T + w[1]) @ w[2].T + w[3]
    return z.logsumexp(1) - z.gather(1, y[:, None])[:, 0]


def grad_of(w, x, y):
    w = [t.detach().clone().requires_grad_() for t in w]
    return list(torch.autograd.grad(losses_of(w, x, y).mean(), w))


def size(v):
    return sum(float((t * t).sum()) for t in v) ** 0.5


def inner(u, v):
    return sum(float((a * b).sum()) for a, b in zip(u, v, strict=True))


def plus(u, v, factor=1.0):
    return [a + factor * b for a, b in zip(u, v, strict=True)]


def theirs(rule, steps, n=8):
    """The weights after every step of SGD with momentum, where ``rule(w, x, y, step)`` gives the gradient."""
    w = [p.detach().clone() for p in network().parameters()]
    v = None
    path = []
    for step in range(steps):
        g = rule(w, *batch(step, n), step)
        v = g if v is None else [MOMENTUM * a + b for a, b in zip(v, g, strict=True)]
        w = plus(w, v, -LR)
        path.append(w)
    return path


def same(a, b, tol=1e-9):  # the guard of 1e-12 in the denominators is all that may differ
    assert len(a) == len(b)
    for step, (u, v) in enumerate(zip(a, b, strict=True)):
        for s, t in zip(u, v, strict=True):
            torch.testing.assert_close(s, t, rtol=0, atol=tol, msg=lambda m, step=step: f"step {step}: {m}")


def identical(a, b):
    return all(torch.equal(s, t) for u, v in zip(a, b, strict=True) for s, t in zip(u, v, strict=True))


def sam_rule(rho):
    def rule(w, x, y, step):
        g = grad_of(w, x, y)
        return grad_of(plus(w, g, rho / size(g)), x, y)

    return rule


def gsam_rule(rho, alpha):
    def rule(w, x, y, step):
        g = grad_of(w, x, y)
        g_s = grad_of(plus(w, g, rho / size(g)), x, y)
        cosine = inner(g, g_s) / (size(g) * size(g_s))
        g_perp = plus(g, g_s, -cosine * size(g) / size(g_s))
        return plus(g_s, g_perp, -alpha)

    return rule


def friendly_rule(rho, sigma, lmbda):
    m = None

    def rule(w, x, y, step):
        nonlocal m
        g = grad_of(w, x, y)
        d = g if m is None else plus(g, m, -sigma)
        m = g if m is None else [lmbda * a + (1 - lmbda) * b for a, b in zip(m, g, strict=True)]
        return grad_of(plus(w, d, rho / size(d)), x, y)

    return rule


def looksam_rule(rho, k, alpha):
    g_v = None

    def rule(w, x, y, step):
        nonlocal g_v
        g = grad_of(w, x, y)
        if step % k == 0:
            g_s = grad_of(plus(w, g, rho / size(g)), x, y)
            g_v = plus(g_s, g, -inner(g_s, g) / size(g) ** 2)
            return g_s
        return plus(g, g_v, alpha * size(g) / size(g_v))

    return rule


def esam_rule(rho, beta, gamma):
    def rule(w, x, y, step):
        g = grad_of(w, x, y)
        draws = torch.rand(len(w), generator=generator(SEED, step)).tolist()
        chosen = [u < beta or u == min(draws) for u in draws]
        g = [t if c else torch.zeros_like(t) for t, c in zip(g, chosen, strict=True)]
        moved = plus(w, g, rho / beta / size(g))
        hurt = losses_of(moved, x, y) - losses_of(w, x, y)
        order = sorted(range(len(x)), key=lambda i: -float(hurt[i]))
        rows = order[: max(1, round(gamma * len(x)))]
        return grad_of(moved, x[rows], y[rows])

    return rule


def ksam_rule(rho, keep):
    def rule(w, x, y, step):
        losses = losses_of(w, x, y).tolist()
        order = sorted(range(len(x)), key=lambda i: -losses[i])
        rows = order[: max(1, round(keep * len(x)))]
        g = grad_of(w, x[rows], y[rows])
        return grad_of(plus(w, g, rho / size(g)), x[rows], y[rows])

    return rule


class VSAMRule:
    """The published program, word for word in its order of events; ``seen`` notes which branch each step took."""

    def __init__(self, rho, window, blocks, max_part, alpha1, alpha2, beta, warmup, last):
        self.rho, self.window, self.blocks, self.beta = rho, window, blocks, beta
        self.most, self.alpha1, self.alpha2 = int(window * max_part), alpha1, alpha2
        self.warmup, self.last = warmup, last
        self.norms, self.ratios, self.variances = [0.0] * window, [0.0] * window, []
        self.quota, self.chance, self.used, self.t, self.c = 1.0, 0.5, 0, 1, beta
        self.psf, self.seen, self.quotas = None, [], []

    def sam(self, w, x, y):
        self.c = 1.0
        self.used += 1
        g = grad_of(w, x, y)
        g_s = grad_of(plus(w, g, self.rho / size(g)), x, y)
        self.psf = plus(g_s, g, -1)
        norm = size(self.psf[-self.last :])
        self.norms = [*self.norms, norm][-self.window :]
        self.ratios = [*self.ratios, norm / size(g[-self.last :])][-self.window :]
        ordered, width = sorted(self.norms), self.window // self.blocks
        inside = []
        for j in range(self.blocks):
            part = ordered[j * width : (j + 1) * width]
            mean = sum(part) / width
            inside.append(sum((p - mean) ** 2 for p in part) / (width - 1))
        self.variances.append(sum(inside) / self.blocks)
        self.seen.append("sam")
        return g_s

    def between(self, w, x, y):
        g = grad_of(w, x, y)
        if self.c > self.beta**6 * (1 + 1e-9):
            self.c *= self.beta
            self.seen.append("reuse")
            return plus(g, self.psf, self.c)
        self.seen.append("plain")
        return g

    def __call__(self, w, x, y, step):
        if step < self.warmup:
            g = self.sam(w, x, y)
            self.used = 1
            return g
        if self.t % self.window == 0:
            variances = self.variances[-self.window :]

            def mean_change(v):
                r = [(b - a) / a for a, b in itertools.pairwise(v)]
                return min(1.0, max(-1.0, sum(r) / len(r)))

            self.quota *= 1 + self.alpha1 * mean_change(self.ratios) + self.alpha2 * mean_change(variances)
            self.quota = max(1.0, min(self.quota, self.most))
            self.quotas.append(self.quota)
            self.chance = self.quota / self.window
            self.used = 0
        drawn = float(torch.rand((), generator=generator(SEED, step))) < self.chance
        missing = int(self.quota) - self.used
        sampled = (self.used < int(self.quota) and drawn) or self.window - self.t % self.window <= missing
        self.t += 1
        return self.sam(w, x, y) if sampled else self.between(w, x, y)


# -- equality, step by step -----------------------------------------------------------------------------------------

TWINS = [
    (GSAM(0.3, 0.4), lambda: gsam_rule(0.3, 0.4)),
    (GSAM(0.05, 1.3), lambda: gsam_rule(0.05, 1.3)),
    (FriendlySAM(0.3, 1.0, 0.9), lambda: friendly_rule(0.3, 1.0, 0.9)),
    (FriendlySAM(0.3, 0.5, 0.6), lambda: friendly_rule(0.3, 0.5, 0.6)),
    (LookSAM(0.3, 3, 0.7), lambda: looksam_rule(0.3, 3, 0.7)),
    (LookSAM(0.1, 1, 0.2), lambda: looksam_rule(0.1, 1, 0.2)),
    (ESAM(0.3, 0.6, 0.5), lambda: esam_rule(0.3, 0.6, 0.5)),
    (ESAM(0.3, 0.05, 0.3), lambda: esam_rule(0.3, 0.05, 0.3)),
    (KSAM(0.3, 0.5), lambda: ksam_rule(0.3, 0.5)),
    (KSAM(0.3, 0.1), lambda: ksam_rule(0.3, 0.1)),
]


@pytest.mark.parametrize(("method", "rule"), TWINS, ids=lambda v: str(v) if not callable(v) else "")
def test_equals_the_transcription(method, rule):
    same(ours(method, 12), theirs(rule(), 12))


def test_vsam_equals_the_transcription_in_every_branch():
    settings = (0.3, 8, 2, 0.6, 0.9, 0.9, 0.7, 20, 2)
    rule = VSAMRule(*settings)
    same(ours(VSAM(*settings), 150), theirs(rule, 150))
    assert set(rule.seen) == {"sam", "reuse", "plain"}
    assert max(rule.quotas) > 2
    assert len(set(rule.quotas)) > 3
    assert rule.seen[20:].count("sam") > 15


@pytest.mark.parametrize("method", [ESAM(0.3, 1, 1), GSAM(0.3, 0), KSAM(0.3, 1), FriendlySAM(0.3, 0), LookSAM(0.3, 1)])
def test_degenerate_settings_are_sam_bit_for_bit(method):
    assert identical(ours(method, 6), ours(SAM(0.3), 6))


def test_the_slow_side_itself_is_sam_when_it_should_be():
    same(theirs(sam_rule(0.3), 6), ours(SAM(0.3), 6))
    same(theirs(gsam_rule(0.3, 0), 6), ours(SAM(0.3), 6))


# -- GSAM against another library -----------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.4, 0.9])
def test_gsam_equals_pytorch_optimizers(alpha):
    """Its form is ours, decomposition included; it subtracts e instead of copying w back, hence the tolerance.

    Its radius comes from a scheduler object, of which a constant is the simplest. Its global norm is accumulated in
    float32 whatever the gradients are, so the comparison is as exact as that and no more.
    """
    other = pytest.importorskip("pytorch_optimizer")

    class Constant:
        def step(self):
            return 0.3

    model = network()
    base = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    opt = other.GSAM(model.parameters(), base, model, Constant(), alpha=alpha)
    path = []
    for step in range(6):
        opt.set_closure(F.cross_entropy, *batch(step))
        opt.step()
        path.append([p.detach().clone() for p in model.parameters()])
    same(ours(GSAM(0.3, alpha), 6), path, tol=1e-6)
    assert not identical(path, ours(Plain(), 6))


# -- LookSAM --------------------------------------------------------------------------------------------------------


def test_looksam_differs_from_sgd_between_sam_steps():
    look, sgd = LookSAM(0.3, 5), Plain()
    models = [network(), network()]
    grads = []
    for model, method in zip(models, (look, sgd), strict=True):
        opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.0), method, model)
        for step in range(2):
            opt.zero_grad()
            opt.backward(lambda x, y, m=model: F.cross_entropy(m(x), y, reduction="none"), *batch(step))
            opt.step()
        grads.append([p.grad for p in model.parameters()])
    bent, g = grads
    extra = plus(bent, g, -1)
    assert size(extra) == pytest.approx(0.7 * size(g))


def test_looksam_resumed_without_its_vector_begins_with_a_sam_step():
    model = network()
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=LR), LookSAM(0.3, 5), model)
    fn = lambda x, y: F.cross_entropy(model(x), y, reduction="none")  # noqa: E731
    for step in range(2):
        opt.backward(fn, *batch(step))
        opt.step()
        opt.zero_grad()
    saved = copy.deepcopy(opt.state_dict())
    saved["ausam"]["memory"]["values"] = {}
    opt.load_state_dict(saved)
    assert opt.steps == 2
    w = [p.detach().clone() for p in model.parameters()]
    feedback = opt.backward(fn, *batch(2))
    assert feedback.perturbed.isfinite().all()
    for p, t in zip(model.parameters(), sam_rule(0.3)(w, *batch(2), 2), strict=True):
        torch.testing.assert_close(p.grad, t, rtol=0, atol=1e-12)
    opt.step()
    assert opt.backward(fn, *batch(3)).perturbed.isnan().all()


# -- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("part", "n", "kept"), [(0.5, 8, 4), (0.5, 1, 1), (0.01, 8, 1), (0.9, 1, 1), (0.3, 10, 3)])
def test_esam_and_ksam_keep_the_right_number_also_of_equal_samples(part, n, kept):
    """Equal samples tie in every loss: keeping "more than a threshold" would keep none of them."""
    x = torch.ones(n, 4, dtype=torch.float64)
    y = torch.zeros(n, dtype=torch.long)
    for method, forwards, backwards in (
        (ESAM(0.3, 0.6, part), 2 * n + kept, n + kept),
        (KSAM(0.3, part), n + 2 * kept, 2 * kept),
    ):
        model = network()
        opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=LR), method, model)
        feedback = opt.backward(lambda x, y, m=model: F.cross_entropy(m(x), y, reduction="none"), x, y)
        assert (opt.samples_forward, opt.samples_backward) == (forwards, backwards)
        assert feedback.loss.isfinite().all()
        assert int(feedback.perturbed.isfinite().sum()) == (n if isinstance(method, ESAM) else kept)
        assert all(p.grad.isfinite().all() for p in model.parameters())


def test_esam_takes_only_tensors_that_have_a_gradient():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(20)])
            self.used = nn.Linear(4, 3)

        def forward(self, x):
            return self.used(x)

    torch.manual_seed(0)
    model = Half()
    x, y = batch(0)
    for seed in range(10):
        base = torch.optim.SGD(model.parameters(), lr=LR)
        opt = SharpnessAware(base, ESAM(0.3, beta=0.001, gamma=1), model, seed=seed)
        feedback = opt.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x.float(), y)
        assert (feedback.sharpness > 0).any()
        assert all(p.grad is None for p in model.unused)


@pytest.mark.parametrize("method", [ESAM(), KSAM()])
def test_methods_that_need_rows_refuse_a_closure(method):
    model = network()
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=LR), method, model)
    before = [p.detach().clone() for p in model.parameters()]

    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(model(batch(0)[0]), batch(0)[1])
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match=r"needs per-sample losses, which opt\.step\(closure\) cannot give"):
        opt.step(closure)
    assert all(torch.equal(p, t) for p, t in zip(model.parameters(), before, strict=True))


# -- parameters that a batch does not reach -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [GSAM(0.3), FriendlySAM(0.3), LookSAM(0.3, 4), VSAM(0.3, window=4, blocks=2, warmup=1)]
)
def test_a_remembered_vector_does_not_move_what_the_batch_does_not_reach(method):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])

        def forward(self, x, which):
            return self.branches[which](x)

    torch.manual_seed(0)
    model = Branches()
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=LR), method, model)
    for step, which in enumerate((0, 1, 0, 1, 1)):
        x, y = batch(step)
        opt.backward(lambda x, y, b=which: F.cross_entropy(model(x, b), y, reduction="none"), x.float(), y)
        reached = [p.grad is not None for p in model.parameters()]
        assert reached == [which == 0] * 2 + [which == 1] * 2
        opt.step()
        opt.zero_grad()


@pytest.mark.parametrize("method", [GSAM(0.3), LookSAM(0.3), VSAM(0.3)])
def test_what_only_the_first_pass_reaches_gets_no_gradient(method):
    """As with SAM. GSAM would otherwise climb there: minus alpha times a gradient."""

    class Forgetful(nn.Module):
        def __init__(self):
            super().__init__()
            self.always, self.once, self.calls = nn.Linear(4, 3), nn.Linear(4, 3), 0

        def forward(self, x):
            self.calls += 1
            return self.always(x) + (self.once(x) if self.calls == 1 else 0)

    torch.manual_seed(0)
    model = Forgetful()
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=LR), method, model)
    x, y = batch(0)
    opt.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x.float(), y)
    assert model.calls == 2
    assert all(p.grad is not None for p in model.always.parameters())
    assert all(p.grad is None for p in model.once.parameters())


# -- VSAM's quota ---------------------------------------------------------------------------------------------------


def test_vsam_trains_on_before_its_windows_are_full():
    """The published program raises here: it divides zeros of the empty windows by each other."""
    path = ours(VSAM(0.3, window=6, blocks=2, warmup=1), 40)
    assert all(t.isfinite().all() for t in path[-1])


def test_quota_functions():
    assert drift(None) == 0.0
    assert drift(torch.tensor([3.0])) == 0.0
    assert drift(torch.tensor([1.0, 2.0, 1.0])) == 0.25
    assert drift(torch.tensor([0.0, 2.0, 3.0])) == 0.5
    assert drift(torch.tensor([1.0, 9.0])) == 1.0
    assert push(torch.tensor([1.0, 2.0]), torch.tensor(3.0), 2).tolist() == [2.0, 3.0]
    up, down = torch.tensor([1.0, 1.5]), torch.tensor([1.0, 0.5])
    assert renew({"quota": 4.0, "ratios": up, "variances": down}, 0.2, 0.1, 40) == {"quota": 4.0 * 1.05, "used": 0}
    assert renew({"quota": 4.0, "ratios": up}, 0.2, 0.1, 4)["quota"] == 4.0
    assert renew({"quota": 1.0, "ratios": down}, 0.2, 0.1, 4)["quota"] == 1.0
    seen = observe({"norms": torch.tensor([9.0, 1.0, 5.0])}, torch.tensor(3.0), torch.tensor(2.0), 4, 2)
    assert seen["ratios"].tolist() == [1.5]
    assert seen["variances"].tolist() == [(2.0 + 8.0) / 2]
    assert "variances" not in observe({}, torch.tensor(3.0), torch.tensor(2.0), 4, 2)


@pytest.mark.parametrize("quota", [1.0, 3.7, 8.0])
def test_every_window_meets_its_quota_exactly(quota):
    window = 10
    positions = []
    for trial in range(50):
        memory = {"quota": quota, "used": 0}
        for position in range(window):
            if due(memory, position, window, generator(trial, position)):
                memory["used"] += 1
                positions.append(position)
        assert memory["used"] == int(quota)
    assert len(set(positions)) == window


# -- the shared mathematics -----------------------------------------------------------------------------------------


def test_vectors_with_missing_entries():
    a, b, c = torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0]), torch.tensor([2.0, 2.0])
    x, y = [a, None, c, None], [b, c, None, None]
    summed = add(x, y, 2.0)
    assert [None if t is None else t.tolist() for t in summed] == [[5.0, 4.0], [4.0, 4.0], [2.0, 2.0], None]
    assert all(t is None or t.data_ptr() not in {s.data_ptr() for s in (a, b, c)} for t in summed)
    assert float(dot(x, y)) == 3.0
    assert float(dot([None], [a])) == 0.0
    assert [t is None for t in matching(y, x)] == [False, True, True, True]
    mean = average(x, y, 0.75)
    assert [None if t is None else t.tolist() for t in mean] == [[2.5, 3.0], [2.0, 2.0], [2.0, 2.0], None]
    part = orthogonal(x, y)
    assert float(dot(part, y)) == pytest.approx(0.0, abs=1e-6)
    assert all(torch.equal(s, t) for s, t in zip(orthogonal([a, c], [b * 0, c * 0]), [a, c], strict=True))
    assert dot([a.bfloat16()], [a.bfloat16()]).dtype == torch.float32
    assert hardest(torch.tensor([1.0, 5.0, 3.0]), 0.5).tolist() == [1, 2]
