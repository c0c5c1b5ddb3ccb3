"""SAM against slow, literal transcriptions and another library, step by step."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from ausam import AESAM, RST, SAM, AUSampling, SelectiveBatchSampler, SharpnessAware
from tests.helpers import losses_of, refused, with_logits
from tests.methods.slow import (
    BASES,
    EXACT,
    GUARD,
    ROUNDED,
    D,
    assert_follows,
    batch,
    batches,
    grad_at,
    length,
    losses_at,
    network,
    plus,
    sam_perturbation,
    sgd,
    slow_groups,
    slow_weighted,
)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("batchnorm", [False, True])
def test_step_by_step(batchnorm, base):
    assert_follows(SAM(rho=0.3), sam_perturbation(0.3), batchnorm, base)


@pytest.mark.parametrize("m", [None, 4])
@pytest.mark.parametrize("weighted", ["both", "first", "second"])
def test_with_weights_in_one_pass(weighted, m):
    model = network(batchnorm=False)
    opt = SharpnessAware(sgd(model), SAM(rho=0.3, m=m, weighted=weighted), model)
    weight = torch.linspace(0.5, 2.0, 9, dtype=D)
    first, second = ((weight, torch.ones(9, dtype=D))[weighted == other] for other in ("second", "first"))
    w = [p.detach().clone() for p in model.parameters()]
    (x, y), *_ = batches(steps=1)
    opt.backward(losses_of(model), x, y, weight=weight)
    total = [torch.zeros_like(t) for t in w]
    for rows in torch.arange(9).tensor_split(1 if m is None else 3):
        rows = rows.tolist()
        g = slow_weighted(w, x, y, first, rows, len(rows))
        total = plus(total, slow_weighted(plus(w, g, 0.3 / length(g)), x, y, second, rows, 9))
    for p, g in zip(model.parameters(), total, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=0, atol=1e-10)


# -- by parts of the batch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "m", "groups"),
    [
        (8, 4, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (9, 4, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
        (7, 3, [[0, 1, 2], [3, 4], [5, 6]]),
        (5, 1, [[0], [1], [2], [3], [4]]),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_each_group_has_its_own_perturbation(n, m, groups, weighted):
    model = network(batchnorm=False)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.2), SAM(0.3, m=m), model)
    weight = torch.linspace(0.2, 2.0, n, dtype=D) if weighted else None
    for step in range(4):
        x, y = batch(step, n)
        w = [p.detach().clone() for p in model.parameters()]
        feedback = opt.backward(with_logits(model), x, y, weight=weight)
        slow = slow_groups(w, x, y, torch.ones(n, dtype=D) if weight is None else weight, 0.3, groups)
        for p, g in zip(model.parameters(), slow, strict=True):
            torch.testing.assert_close(p.grad, g, **EXACT)
        torch.testing.assert_close(feedback.loss, losses_at(w, x, y), **EXACT)
        torch.testing.assert_close(feedback.outputs, model(x).detach(), **EXACT)
        for rows in groups:
            g = slow_weighted(w, x, y, torch.ones(n, dtype=D) if weight is None else weight, rows, len(rows))
            after = losses_at(plus(w, g, 0.3 / (length(g) + GUARD)), x, y)[rows]
            torch.testing.assert_close(feedback.perturbed[rows], after, **EXACT)
        opt.step()
        opt.zero_grad()
    assert (opt.samples_forward, opt.samples_backward) == (4 * n * 2, 4 * n * 2)


@pytest.mark.parametrize(("ascent", "n", "drawn"), [(part, n, k) for part, n, k in ROUNDED if n > 1])
def test_the_perturbation_comes_from_the_drawn_rows(ascent, n, drawn):
    model = network(batchnorm=False)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.2), SAM(0.3, ascent=ascent), model, seed=3)
    seen = set()
    for step in range(6):
        x, y = batch(step, n)
        w = [p.detach().clone() for p in model.parameters()]
        feedback = opt.backward(with_logits(model), x, y)
        rows = feedback.loss.isfinite().nonzero()[:, 0]
        assert len(rows) == drawn
        seen.add(tuple(rows.tolist()))
        moved = plus(w, g := grad_at(w, x[rows], y[rows]), 0.3 / (length(g) + GUARD))
        for p, slow in zip(model.parameters(), grad_at(moved, x, y), strict=True):
            torch.testing.assert_close(p.grad, slow, **EXACT)
        torch.testing.assert_close(feedback.loss[rows], losses_at(w, x, y)[rows], **EXACT)
        torch.testing.assert_close(feedback.perturbed, losses_at(moved, x, y), **EXACT)
        torch.testing.assert_close(feedback.outputs[rows], model(x)[rows].detach(), **EXACT)
        assert int(feedback.outputs.isnan().all(1).sum()) == n - drawn
        opt.step()
        opt.zero_grad()
    assert len(seen) > 1  # other rows at each step
    assert opt.samples_forward == opt.samples_backward == 6 * (n + drawn)


@pytest.mark.parametrize("method", [SAM(0.3, m=3), SAM(0.3, ascent=0.5)])
def test_samples_are_ranked_by_what_the_parts_measure(method):
    """A visit scores the rows that have both losses, and no others; selection works with it."""
    model = network(batchnorm=False)
    opt = SharpnessAware(sgd(model), method, model)
    x, y = batches(1, n=40)[0]
    sampler = SelectiveBatchSampler(40, 8, AUSampling(0.5, ramp=30), seed=1)
    known = torch.zeros(40)
    for epoch in range(4):
        for index in map(torch.tensor, sampler):
            assert len(index) == (8 if epoch == 0 else 4)
            feedback = opt.backward(losses_of(model), x[index], y[index], index=index)
            sampler.update(feedback)
            known[index[feedback.sharpness.isfinite()]] += 1
            opt.step()
            opt.zero_grad()
    assert torch.equal(sampler.scores.count.float(), known)
    assert known.sum() == (40 + 3 * 20) * (0.5 if method.ascent else 1)


def test_parts_are_refused_where_they_cannot_work():
    with refused(ValueError, "SAM: m is 4 and ascent is 0.5", "Use one of the two"):
        SAM(m=4, ascent=0.5)
    with refused(ValueError, "AESAM: inner is SAM(", "SAM() without m, ascent and weighted"):
        AESAM(SAM(weighted="second"), total_steps=9)
    for inner in (SAM(m=4), SAM(ascent=0.5)):
        with refused(ValueError, "AESAM: inner is SAM(", "SAM() without m, ascent and weighted"):
            AESAM(inner, total_steps=10)
        with refused(ValueError, "RST: inner is SAM(", "SAM() without m, ascent and weighted"):
            RST(inner, gamma=2.0)
        assert RST(inner, p=0.5).passes[0] == 1 + 0.5 * (inner.passes[0] - 1)
        model = network()
        opt = SharpnessAware(sgd(model), inner, model)
        with refused(RuntimeError, "needs per-sample losses", "opt.backward(loss_fn, *batch)"):
            opt.step(lambda model=model: model(batch(0)[0]).sum())
        x, y = batch(0)

        def losses(x, y, odd, model=model):
            return F.cross_entropy(model(x), y, reduction="none") + 0 * odd.sum()

        with refused(ValueError, "tensors of lengths 3, 8", "Pass index= to opt.backward"):
            opt.backward(losses, x, y, torch.ones(3))
        assert opt.backward(losses, x, y, torch.ones(3), index=torch.arange(8)).loss.isfinite().any()
