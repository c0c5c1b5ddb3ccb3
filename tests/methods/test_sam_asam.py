"""SAM, ASAM and AUSAM step by step against slow, literal transcriptions that share no code with the library."""

import copy
import math
from dataclasses import dataclass, field

import pytest
import torch
from pytorch_optimizer import SAM as PeerSAM
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ausam import ASAM, SAM, AUSampling, Indexed, SelectiveBatchSampler, SharpnessAware

EXACT = {"rtol": 0, "atol": 1e-12}  # float64: sums in another order differ in the last digits only
GUARD = 1e-12  # added to the norm by all common implementations


def network(batchnorm):
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(7)] if batchnorm else []
    return nn.Sequential(nn.Linear(5, 7), *middle, nn.Tanh(), nn.Linear(7, 3)).double()


def batches(steps, n=9):
    rng = torch.Generator().manual_seed(1)
    return [
        (torch.randn(n, 5, generator=rng, dtype=torch.float64), torch.randint(3, (n,), generator=rng))
        for _ in range(steps)
    ]


def per_sample(model):
    return lambda x, y: functional.cross_entropy(model(x), y, reduction="none")


# -- the transcriptions ------------------------------------------------------------------------------------------------


def slow_pass(model, x, y):
    z = model(x)
    log_p = z - z.exp().sum(1, keepdim=True).log()
    losses = torch.stack([-log_p[i, y[i]] for i in range(len(y))])
    return losses, torch.autograd.grad(losses.sum() / len(y), list(model.parameters()))


def slow_statistics(model):
    return {name: b.clone() for name, b in model.named_buffers()}


def slow_two_passes(model, x, y, perturbation):
    """Losses at w, losses at w + e and the gradient at w + e; statistics are those that the pass at w left behind."""
    params = list(model.parameters())
    before, g = slow_pass(model, x, y)
    statistics = slow_statistics(model)
    saved = [p.detach().clone() for p in params]
    e = perturbation(dict(zip([n for n, _ in model.named_parameters()], zip(saved, g, strict=True), strict=True)))
    for p, name in zip(params, e, strict=True):
        p.data = p.data + e[name]
    after, g_s = slow_pass(model, x, y)
    for p, w in zip(params, saved, strict=True):
        p.data = w.clone()
    for name, b in model.named_buffers():
        b.copy_(statistics[name])
    return before.detach(), after.detach(), g_s


def slow_sam(rho):
    def perturbation(named):
        length = math.sqrt(sum(float(x) ** 2 for _, g in named.values() for x in g.flatten())) + GUARD
        return {name: rho * g / length for name, (_, g) in named.items()}

    return perturbation


def slow_asam(rho, eta):
    def perturbation(named):
        t = {n: w.abs() + eta if "weight" in n else torch.ones_like(w) for n, (w, _) in named.items()}
        length = math.sqrt(sum(float(x) ** 2 for n, (_, g) in named.items() for x in (t[n] * g).flatten())) + GUARD
        return {n: rho * t[n] ** 2 * g / length for n, (_, g) in named.items()}

    return perturbation


class SlowSGD:
    def __init__(self, model, lr, momentum, decay):
        self.model, self.lr, self.momentum, self.decay, self.v = model, lr, momentum, decay, None

    def step(self, g):
        d = [gi + self.decay * p.detach() for gi, p in zip(g, self.model.parameters(), strict=True)]
        self.v = d if self.v is None else [self.momentum * v + di for v, di in zip(self.v, d, strict=True)]
        for p, v in zip(self.model.parameters(), self.v, strict=True):
            p.data = p.data - self.lr * v


class SlowAdam:
    def __init__(self, model, lr, decay):
        self.model, self.lr, self.decay, self.t = model, lr, decay, 0
        self.m = [torch.zeros_like(p) for p in model.parameters()]
        self.v = [torch.zeros_like(p) for p in model.parameters()]

    def step(self, g):
        self.t += 1
        for i, p in enumerate(self.model.parameters()):
            d = g[i] + self.decay * p.detach()
            self.m[i] = 0.9 * self.m[i] + 0.1 * d
            self.v[i] = 0.999 * self.v[i] + 0.001 * d * d
            m, v = self.m[i] / (1 - 0.9**self.t), self.v[i] / (1 - 0.999**self.t)
            p.data = p.data - self.lr * m / (v.sqrt() + 1e-8)


def fast_and_slow(base, model, twin):
    if base == "sgd":
        return (
            torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01),
            SlowSGD(twin, lr=0.2, momentum=0.9, decay=0.01),
        )
    return torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=0.01), SlowAdam(twin, lr=0.02, decay=0.01)


def assert_same(model, twin, **tolerance):
    for (name, a), b in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, **(tolerance or EXACT), msg=lambda m, name=name: f"{name}: {m}")


# -- SAM and ASAM ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["sgd", "adam"])
@pytest.mark.parametrize("batchnorm", [False, True])
@pytest.mark.parametrize(
    ("method", "perturbation"),
    [
        (SAM(rho=0.3), slow_sam(0.3)),
        (ASAM(rho=0.5, eta=0.01), slow_asam(0.5, 0.01)),
        (ASAM(rho=2.0, eta=0.0), slow_asam(2.0, 0.0)),
    ],
    ids=["sam", "asam", "asam-eta0"],
)
def test_step_by_step(method, perturbation, batchnorm, base):
    model = network(batchnorm)
    twin = copy.deepcopy(model)
    fast, slow = fast_and_slow(base, model, twin)
    opt = SharpnessAware(fast, method, model)
    for x, y in batches(steps=6):
        feedback = opt.backward(per_sample(model), x, y)
        before, after, g = slow_two_passes(twin, x, y, perturbation)
        for p, gi in zip(model.parameters(), g, strict=True):
            torch.testing.assert_close(p.grad, gi, **EXACT)
        opt.step()
        opt.zero_grad()
        slow.step(g)
        assert_same(model, twin)
        torch.testing.assert_close(feedback.loss, before, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(feedback.perturbed, after, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(feedback.sharpness, (after - before).abs(), rtol=0, atol=1e-6)
    assert opt.steps == 6
    assert (opt.samples_forward, opt.samples_backward) == (6 * 9 * 2, 6 * 9 * 2)


def test_sam_with_weights_of_the_samples():
    model = network(batchnorm=True)
    twin = copy.deepcopy(model)
    fast, slow = fast_and_slow("sgd", model, twin)
    opt = SharpnessAware(fast, SAM(rho=0.3), model)
    weight = torch.linspace(0.0, 2.0, 9, dtype=torch.float64)
    for x, y in batches(steps=3):
        opt.backward(per_sample(model), x, y, weight=weight)
        opt.step()
        opt.zero_grad()
        # Both passes use the weighted sum over n.
        params = list(twin.parameters())
        g = torch.autograd.grad((per_sample(twin)(x, y) * weight).sum() / 9, params)
        statistics = slow_statistics(twin)
        saved = [p.detach().clone() for p in params]
        length = math.sqrt(sum(float((gi**2).sum()) for gi in g)) + GUARD
        for p, gi in zip(params, g, strict=True):
            p.data = p.data + 0.3 * gi / length
        g = torch.autograd.grad((per_sample(twin)(x, y) * weight).sum() / 9, params)
        for p, w in zip(params, saved, strict=True):
            p.data = w
        for name, b in twin.named_buffers():
            b.copy_(statistics[name])
        slow.step(g)
        assert_same(model, twin)


def test_sam_against_another_implementation():
    model = network(batchnorm=True)
    peer = copy.deepcopy(model)
    opt = SharpnessAware(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4), SAM(rho=0.1), model
    )
    other = PeerSAM(peer.parameters(), torch.optim.SGD, rho=0.1, lr=0.1, momentum=0.9, weight_decay=5e-4)
    mean, var = torch.zeros(7, dtype=torch.float64), torch.ones(7, dtype=torch.float64)
    for step, (x, y) in enumerate(batches(steps=10), start=1):
        with torch.no_grad():
            h = model[0](x)  # at w: what BatchNorm sees, once a step
        mean, var = 0.9 * mean + 0.1 * h.mean(0), 0.9 * var + 0.1 * h.var(0)

        opt.backward(per_sample(model), x, y)
        opt.step()
        opt.zero_grad()

        def closure(x=x, y=y):
            other.zero_grad()
            loss = functional.cross_entropy(peer(x), y)
            loss.backward()
            return loss

        closure()
        other.step(closure)
        for p, q in zip(model.parameters(), peer.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-8)  # the other one takes its norm in float32
        torch.testing.assert_close(model[1].running_mean, mean, **EXACT)
        torch.testing.assert_close(model[1].running_var, var, **EXACT)
        assert int(model[1].num_batches_tracked) == step
    assert int(peer[1].num_batches_tracked) == 20  # the other one leaves BatchNorm to the user


# -- AUSAM: SAM x AUSampling -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watched(AUSampling):
    """AUSampling that notes the mini-batches it was offered, what it knew of them and what it kept."""

    seen: list = field(default_factory=list)

    def choose(self, scores, epoch, candidates, rng):
        kept, weight = super().choose(scores, epoch, candidates, rng)
        odds = self.odds(scores.of(candidates), epoch) if epoch else [None] * len(candidates)
        self.seen.extend((c.tolist(), o, c[k].tolist()) for c, o, k in zip(candidates, odds, kept, strict=True))
        return kept, weight


def slow_odds(g, epoch, s_min, s_max, start):
    """Equations 7 and 8 of the paper (without the division by the sum), s_max rising until epoch ``start``."""
    bound = s_max if epoch >= start else s_min + (s_max - s_min) * epoch / start
    return [s_min + (gi - min(g)) / (max(g) - min(g)) * (bound - s_min) for gi in g]


@pytest.mark.parametrize("batchnorm", [False, True])
def test_ausam(batchnorm):
    n, size, alpha, rho = 22, 8, 0.5, 0.3
    rng = torch.Generator().manual_seed(5)
    x, y = torch.randn(n, 5, generator=rng, dtype=torch.float64), torch.randint(3, (n,), generator=rng)
    model = network(batchnorm)
    twin = copy.deepcopy(model)
    fast, slow = fast_and_slow("sgd", model, twin)
    opt = SharpnessAware(fast, SAM(rho=rho), model)
    policy = Watched(alpha=alpha, s_min=0.1, s_max=0.5, ramp=3)
    sampler = SelectiveBatchSampler(n, batch_size=size, policy=policy, seed=3)
    loader = DataLoader(Indexed(TensorDataset(x, y)), batch_sampler=sampler)
    dlp = {i: [] for i in range(n)}  # of each sample: every difference seen

    for epoch in range(6):
        policy.seen.clear()
        known = {i: sum(v) / len(v) for i, v in dlp.items() if v}
        used = []
        for xb, yb, index in loader:
            sampler.update(opt.backward(per_sample(model), xb, yb, index=index))
            opt.step()
            opt.zero_grad()

            rows = index.tolist()
            used.append(rows)
            before, after, g = slow_two_passes(twin, x[rows], y[rows], slow_sam(rho))
            slow.step(g)
            for i, a, b in zip(rows, after.tolist(), before.tolist(), strict=True):
                dlp[i].append(abs(a - b))

        # The plan: mini-batches of 8, 8 and 6 that hold every sample once; all of each at first, then half.
        assert sorted(i for c, _, _ in policy.seen for i in c) == list(range(n))
        assert [len(c) for c, _, _ in policy.seen] == [8, 8, 6]
        assert [len(rows) for rows in used] == ([8, 8, 6] if epoch == 0 else [4, 4, 3])
        assert used == [kept for _, _, kept in policy.seen]
        for candidates, odds, kept in policy.seen:
            assert len(set(kept)) == len(kept)
            assert set(kept) <= set(candidates)
            if epoch:
                slowly = torch.tensor(slow_odds([known[i] for i in candidates], epoch, 0.1, 0.5, 3))
                torch.testing.assert_close(odds, slowly, rtol=1e-4, atol=1e-5)

        adlp = torch.tensor([sum(dlp[i]) / len(dlp[i]) for i in range(n)])
        torch.testing.assert_close(sampler.scores.mean, adlp, rtol=0, atol=1e-6)
        assert sampler.scores.count.tolist() == [len(dlp[i]) for i in range(n)]
        torch.testing.assert_close(sampler.scores.last, torch.tensor([dlp[i][-1] for i in range(n)]), rtol=0, atol=1e-6)
        assert_same(model, twin, rtol=0, atol=1e-11)
    assert len({len(v) for v in dlp.values()}) > 1  # or the test saw no selection


def test_ausam_prefers_what_the_paper_says():
    # Two samples, one draw: the odds are the probabilities, here 0.1 against 1.
    policy = AUSampling(alpha=0.5, s_min=0.1, s_max=1.0, ramp=0)
    odds = policy.odds(torch.tensor([[0.02, 0.08, 0.05]]), epoch=7)
    torch.testing.assert_close(odds, torch.tensor([[0.1, 1.0, 0.55]]))
