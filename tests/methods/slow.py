"""The slow side of the comparisons: pieces of literal transcriptions, in float64, that share no code with the library.

Two ways to write a method down. As a rule, a function of a list of weights that gives the gradient of a step; ``ours``
and ``theirs`` are the paths that the library and the rule take. Or as a loop over a twin of the model, where BatchNorm
or a teacher matter.
"""

from __future__ import annotations

import copy
import functools
import math

import torch

from ausam import SharpnessAware
from tests import helpers
from tests.helpers import losses_of, with_logits

D = torch.float64
EXACT = {"rtol": 0, "atol": 1e-12}  # sums in another order differ in the last digits only
GUARD = 1e-12  # added to the norm by all common implementations
LR, MOMENTUM, DECAY, SEED = 0.2, 0.9, 0.01, 11

network = functools.partial(helpers.network, dtype=D)


def batch(step, n=8):
    return helpers.data(100 + step, n, D)


def batches(steps, n=9, seed=1):
    rng = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 4, generator=rng, dtype=D), torch.randint(3, (n,), generator=rng)) for _ in range(steps)]


def sgd(model, momentum=MOMENTUM):
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum, weight_decay=DECAY)


def assert_same(model, twin, **tolerance):
    """Weights and buffers agree but for the last digits."""
    for (name, a), b in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, **(tolerance or EXACT), msg=lambda m, name=name: f"{name}: {m}")


# -- vectors: one tensor per parameter ---------------------------------------------------------------------------------


def length(v):
    return math.sqrt(sum(float((t * t).sum()) for t in v))


def inner(u, v):
    return sum(float((a * b).sum()) for a, b in zip(u, v, strict=True))


def plus(u, v, factor=1.0):
    return [a + factor * b for a, b in zip(u, v, strict=True)]


# -- rules: the gradient of a step from a list of weights --------------------------------------------------------------


def losses_at(w, x, y):
    z = torch.tanh(x @ w[0].T + w[1]) @ w[2].T + w[3]
    return z.logsumexp(1) - z.gather(1, y[:, None])[:, 0]


def grad_at(w, x, y):
    w = [t.detach().clone().requires_grad_() for t in w]
    return list(torch.autograd.grad(losses_at(w, x, y).mean(), w))


def sam_rule(rho):
    def rule(w, x, y, step):
        g = grad_at(w, x, y)
        return grad_at(plus(w, g, rho / length(g)), x, y)

    return rule


def slow_groups(w, x, y, weight, rho, groups):
    """Sample by sample: each at its own group's point, and all divided by n."""
    total = [torch.zeros_like(t) for t in w]
    for rows in groups:
        g = slow_weighted(w, x, y, weight, rows, len(rows))
        moved = plus(w, g, rho / (length(g) + GUARD))
        for i in rows:
            total = plus(total, slow_weighted(moved, x, y, weight, [i], len(y)))
    return total


def slow_weighted(w, x, y, weight, rows, divisor):
    w = [t.detach().clone().requires_grad_() for t in w]
    return list(torch.autograd.grad((weight[rows] * losses_at(w, x[rows], y[rows])).sum() / divisor, w))


def ours(method, steps, n=8):
    """The weights after every step, as the library takes them."""
    model = network(batchnorm=False)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM), method, model, seed=SEED)
    path = []
    for step in range(steps):
        opt.backward(losses_of(model), *batch(step, n))
        opt.step()
        opt.zero_grad()
        path.append([p.detach().clone() for p in model.parameters()])
    return path


def theirs(rule, steps, n=8):
    """The weights after every step of SGD with momentum, where ``rule(w, x, y, step)`` gives the gradient."""
    w = [p.detach().clone() for p in network(batchnorm=False).parameters()]
    v = None
    path = []
    for step in range(steps):
        g = rule(w, *batch(step, n), step)
        v = g if v is None else [MOMENTUM * a + b for a, b in zip(v, g, strict=True)]
        w = plus(w, v, -LR)
        path.append(w)
    return path


def assert_path(a, b, tol=1e-9):  # the guard of 1e-12 in the denominators is all that may differ
    assert len(a) == len(b)
    for step, (u, v) in enumerate(zip(a, b, strict=True)):
        for s, t in zip(u, v, strict=True):
            torch.testing.assert_close(s, t, rtol=0, atol=tol, msg=lambda m, step=step: f"step {step}: {m}")


def identical(a, b):
    return all(torch.equal(s, t) for u, v in zip(a, b, strict=True) for s, t in zip(u, v, strict=True))


# -- twins: a second model that is trained by hand ---------------------------------------------------------------------


def slow_ce(z, y):
    return torch.stack([z[i].exp().sum().log() - z[i, y[i]] for i in range(len(y))])


def slow_kl(old, new, tau):
    """KL of one sample, class by class."""
    p, q = (old / tau).exp() / (old / tau).exp().sum(), (new / tau).exp() / (new / tau).exp().sum()
    return sum(p[c] * (p[c].log() - q[c].log()) for c in range(len(p)))


def slow_gradient(model, x, y):
    return torch.autograd.grad(slow_ce(model(x), y).mean(), list(model.parameters()))


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


def slow_two_passes(model, x, y, perturbation):
    """Losses at w, losses at w + e and the gradient at w + e; statistics are those that the pass at w left behind.

    ``perturbation`` gives e, by name, from the weights and the gradient of each name.
    """
    params = list(model.parameters())
    before = slow_ce(model(x), y)
    g = torch.autograd.grad(before.mean(), params)
    statistics = {name: b.clone() for name, b in model.named_buffers()}
    saved = [p.detach().clone() for p in params]
    e = perturbation(dict(zip([n for n, _ in model.named_parameters()], zip(saved, g, strict=True), strict=True)))
    for p, name in zip(params, e, strict=True):
        p.data = p.data + e[name]
    after = slow_ce(model(x), y)
    g_s = torch.autograd.grad(after.mean(), params)
    for p, w in zip(params, saved, strict=True):
        p.data = w.clone()
    for name, b in model.named_buffers():
        b.copy_(statistics[name])
    return before.detach(), after.detach(), g_s


def sam_perturbation(rho):
    def perturbation(named):
        norm = math.sqrt(sum(float(x) ** 2 for _, g in named.values() for x in g.flatten())) + GUARD
        return {name: rho * g / norm for name, (_, g) in named.items()}

    return perturbation


# torch's own, for a model and for its twin.
BASES = {"sgd": sgd, "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=DECAY)}


def assert_follows(method, perturbation, batchnorm, base):
    """A method of two passes over all rows: gradients, weights, statistics, feedback and counts, step by step."""
    model = network(batchnorm=batchnorm)
    twin = copy.deepcopy(model)
    opt, slow = SharpnessAware(BASES[base](model), method, model), BASES[base](twin)
    for x, y in batches(steps=6):
        feedback = opt.backward(losses_of(model), x, y)
        before, after, g = slow_two_passes(twin, x, y, perturbation)
        for p, gi in zip(model.parameters(), g, strict=True):
            torch.testing.assert_close(p.grad, gi, **EXACT)
        opt.step()
        opt.zero_grad()
        apply(slow, g)
        assert_same(model, twin)
        torch.testing.assert_close(feedback.loss, before, **EXACT)
        torch.testing.assert_close(feedback.perturbed, after, **EXACT)
        torch.testing.assert_close(feedback.sharpness, (after - before).abs(), **EXACT)
    assert opt.steps == 6
    assert (opt.samples_forward, opt.samples_backward) == (6 * 9 * 2, 6 * 9 * 2)


# Of part, n and the rows that remain: max(1, round(part * n)).
ROUNDED = [(0.5, 8, 4), (0.5, 1, 1), (0.01, 8, 1), (0.9, 1, 1), (0.3, 10, 3)]


def equal_samples(method, n):
    """A first step on n samples that are all the same: the optimizer and the feedback."""
    model = network(batchnorm=False)
    opt = SharpnessAware(sgd(model), method, model)
    feedback = opt.backward(losses_of(model), torch.ones(n, 4, dtype=D), torch.zeros(n, dtype=torch.long))
    assert feedback.loss.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    return opt, feedback


def apply(base, g):
    for p, t in zip(base.param_groups[0]["params"], g, strict=True):
        p.grad = t.clone()
    base.step()
    base.zero_grad()


def poison(opt, model, n=4, **more):
    """A batch of NaN, as a loop would meet it."""
    opt.backward(with_logits(model), torch.full((n, 4), torch.nan, dtype=D), torch.zeros(n, dtype=torch.int64), **more)
    opt.step()
    opt.zero_grad()
