"""SAF against a slow transcription of its formula, visit by visit, and its memory."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from ausam import SAF, Plain, SharpnessAware
from tests.helpers import refused, with_logits
from tests.methods.slow import EXACT, D, apply, assert_same, batches, network, poison, sgd, slow_ce, slow_kl

SAMPLES = 14


def saf_plan(epochs):
    """Batches of indices; about a third of the samples is left out of each epoch, the largest of the first one."""
    rng = torch.Generator().manual_seed(3)
    for epoch in range(epochs):
        order = torch.randperm(SAMPLES, generator=rng)[:10]
        if epoch == 0:
            order = torch.arange(10)
        yield from order.split(5)


@pytest.mark.filterwarnings("ignore:The loss or the gradient of a step")
def test_follows_the_formula_visit_by_visit():
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
            return F.cross_entropy(z, y, reduction="none"), shown

        if step in (0, 7, 20):  # thrown away: no visit is counted, nothing is remembered
            poison(opt, model, len(index), index=index)
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
        assert_same(model, twin)
        memory = opt.state_dict()["ausam"]["memory"]["values"]
        assert bool(memory["logits"].isfinite().all())
    assert terms > 40
    assert missing > 40
    assert stale == 1
    assert opt.skipped == 3
    assert memory["visits"].tolist() == [len(history[i]) for i in range(SAMPLES)]


def test_needs_the_gap_itself_even_when_start_is_smaller():
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


@pytest.mark.filterwarnings("ignore:The loss or the gradient of a step")
@pytest.mark.parametrize("last", [3, 9])  # 9: the memory would have to grow
def test_remembers_nothing_of_a_step_that_is_thrown_away_for_its_loss_alone(last):
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


def test_an_index_below_zero_is_no_row_from_the_end():
    (x, y), *_ = batches(1, 4)
    model = network()
    with pytest.raises(ValueError, match=r"-1.*Indexed\(dataset\)"):
        SharpnessAware(sgd(model), SAF(), model).backward(with_logits(model), x, y, index=torch.arange(4) - 1)


def test_weights_the_term_of_a_sample_with_its_loss():
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


def test_memory_may_live_elsewhere_and_must_fit():
    (x, y), *_ = batches(1, 4)
    model = network()
    opt = SharpnessAware(sgd(model), SAF(gap=2, device="cpu"), model)
    opt.backward(with_logits(model), x, y, index=[3, 0, 1, 2])
    memory = opt.state_dict()["ausam"]["memory"]["values"]
    assert memory["logits"].shape == (4, 3, 3)
    other = SharpnessAware(sgd(model), SAF(gap=3), model)
    other.load_state_dict(opt.state_dict())
    opt.zero_grad()
    with refused(ValueError, "holds (3, 3)", "(4, 3) are needed", "the gap and the classes of the saved run"):
        other.backward(with_logits(model), x, y, index=[3, 0, 1, 2])


def test_asks_for_the_index():
    model = network()
    opt = SharpnessAware(sgd(model), SAF(), model)
    (x, y), *_ = batches(1)
    with refused(ValueError, "SAF", "Pass index=index", "Indexed(dataset)"):
        opt.backward(with_logits(model), x, y)
