"""What every method must do, driven by the table METHODS: a new entry is tested here with no new code."""

from __future__ import annotations

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ausam import METHODS, POLICIES, SharpnessAware
from tests.helpers import EXAMPLES, VARIANTS, assert_equal, make, refused

# Passes are exact but for these: what a coin, a threshold or a quota may add or take, per sample of a batch.
COST = {"AESAM": (-0.35, 0.35), "RST": (-0.2, 0.2), "VSAM": (-0.8, 0.0)}
SAMPLES, BATCH = 32, 16

every_method = pytest.mark.parametrize("name", METHODS)
with_parts = pytest.mark.parametrize("name", [*METHODS, "SAM-groups", "SAM-ascent"])
every_variant = pytest.mark.parametrize("name", [*METHODS, *VARIANTS])


class Net(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(2, 16)
        self.norm = norm
        self.last = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


class Training:
    """A model, its optimizer and data: a ring around a disc, which a linear model cannot tell apart."""

    def __init__(self, name: str, dtype: torch.dtype = torch.float32, *, batchnorm: bool = True) -> None:
        torch.manual_seed(0)
        self.model = Net(nn.BatchNorm1d(16) if batchnorm else nn.Identity()).to(dtype)
        g = torch.Generator().manual_seed(1)
        angle = 6.2832 * torch.rand(SAMPLES, generator=g, dtype=dtype)
        self.y = torch.arange(SAMPLES) % 2
        radius = 0.5 + self.y + 0.2 * torch.rand(SAMPLES, generator=g, dtype=dtype)
        self.x = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
        base = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.opt = SharpnessAware(base, make(name), self.model, seed=5)

    def losses(self, x, y):
        z = self.model(x)
        return F.cross_entropy(z, y, reduction="none"), z

    def batch(self, step):
        index = (torch.arange(BATCH) + BATCH * step) % SAMPLES
        return self.x[index], self.y[index], index

    def backward(self, step, **kwargs):
        x, y, index = self.batch(step)
        return self.opt.backward(self.losses, x, y, index=index, **kwargs)

    def run(self, steps, start=0):
        for step in range(start, start + steps):
            self.backward(step)
            self.opt.step()
            self.opt.zero_grad()
        return self

    @torch.no_grad()
    def loss(self):
        return float(self.losses(self.x, self.y)[0].mean())

    def state(self, but=()):
        """A copy of all that training may change: weights, buffers, the base's and the method's memory."""
        state = copy.deepcopy({"model": dict(self.model.state_dict()), "opt": self.opt.state_dict()})
        for counter in but:
            del state["opt"]["ausam"][counter]
        return state


def test_the_examples_are_of_methods_that_exist():
    assert set(EXAMPLES) | set(COST) <= {*METHODS, *POLICIES}


@every_method
def test_learns(name):
    """A linear model stays near log 2 here, a wrong sign climbs, and a lost gradient leaves its tensor behind.

    Without BatchNorm: half of a ring is too small a batch for its statistics.
    """
    t = Training(name, batchnorm=False)
    weights = [p.detach().clone() for p in t.model.parameters()]
    assert t.loss() > 0.65
    t.run(120)
    assert t.loss() < 0.2
    moved = {n for (n, p), w in zip(t.model.named_parameters(), weights, strict=True) if not torch.equal(p, w)}
    assert moved == {n for n, _ in t.model.named_parameters()}


@every_method
def test_puts_the_weights_back_bit_for_bit(name):
    t = Training(name).run(5)
    for step in range(5, 12):
        before = [p.detach().clone() for p in t.model.parameters()]
        t.backward(step)
        assert all(torch.equal(p, w) for p, w in zip(t.model.parameters(), before, strict=True))
        assert all(p.grad is not None and p.grad.isfinite().all() for p in t.model.parameters())
        t.opt.step()
        t.opt.zero_grad()


@with_parts
def test_moves_batchnorm_once_a_step(name):
    t = Training(name)
    for step in range(12):
        before = t.model.norm.running_mean.clone()
        t.run(1, start=step)
        assert int(t.model.norm.num_batches_tracked) == step + 1
        assert not torch.equal(t.model.norm.running_mean, before)


@every_method
def test_accumulates_over_two_calls(name):
    t = Training(name).run(6)
    t.backward(6)
    first = [p.grad.clone() for p in t.model.parameters()]
    alone = copy.deepcopy(t)
    alone.opt.zero_grad()
    alone.backward(7)
    t.backward(7)
    for p, q, g in zip(t.model.parameters(), alone.model.parameters(), first, strict=True):
        torch.testing.assert_close(p.grad, g + q.grad)
        assert not torch.equal(q.grad, torch.zeros_like(g))


@every_variant
@pytest.mark.parametrize("at", [3, 7])
def test_resumes_bit_for_bit(name, at):
    whole = Training(name).run(at)
    file = io.BytesIO()
    torch.save({"model": whole.model.state_dict(), "opt": whole.opt.state_dict()}, file)
    whole.run(9, start=at)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = Training(name)
    resumed.model.load_state_dict(saved["model"])
    resumed.opt.load_state_dict(saved["opt"])
    resumed.run(9, start=at)
    assert_equal(resumed.state(), whole.state())


@every_variant
def test_survives_a_batch_that_is_not_finite(name):
    """The bad batch leaves no trace: what follows is, bit for bit, the training that never saw it."""
    t = Training(name).run(5)
    counters = ("samples_forward", "samples_backward", "skipped")
    before = t.state(but=counters)
    x, y, index = t.batch(5)
    with pytest.warns(RuntimeWarning, match="not finite"):
        t.opt.backward(t.losses, torch.where(torch.arange(BATCH)[:, None] == 3, torch.nan, x), y, index=index)
    t.opt.step()
    t.opt.zero_grad()
    assert t.opt.skipped == 1
    assert_equal(t.state(but=counters), before)
    assert_equal(t.run(6, start=5).state(but=counters), Training(name).run(11).state(but=counters))


@pytest.mark.parametrize("name", [name for name in METHODS if name != "SAF"])
def test_does_not_change_the_memory_it_is_given(name):
    """A step may be thrown away, so a method assigns new objects.

    SAF's table is too large to copy: it is written in place, last, and only if the step is finite, as the test above
    of a batch that is not finite sees.
    """
    t = Training(name).run(5)
    given = t.opt.state_dict()["ausam"]["memory"]
    before, held = copy.deepcopy(given), dict(given)
    for step in range(5, 9):
        t.backward(step)
        t.opt.step()
        for p in t.model.parameters():
            p.grad.fill_(7.0)  # as clipping in place would
        t.opt.zero_grad()
    assert_equal(held, before)


@every_method
def test_a_loss_scale_changes_nothing(name):
    """GradScaler's factor, other at each step: methods that mix or remember gradients must not mix the scales."""
    plain, scaled = Training(name, torch.float64), Training(name, torch.float64)
    for step in range(14):
        factor = 2.0 ** ((5 * step) % 11)
        plain.run(1, start=step)
        scaled.backward(step, backward=lambda loss, f=factor: (loss * f).backward())
        for p in scaled.model.parameters():
            p.grad /= factor
        scaled.opt.step()
        scaled.opt.zero_grad()
    for p, q in zip(plain.model.parameters(), scaled.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-9)


@every_variant
def test_pickles_and_copies(name):
    t = Training(name).run(5)
    method = t.opt.method
    assert pickle.loads(pickle.dumps(method)) == copy.deepcopy(method) == method
    twins = [pickle.loads(pickle.dumps(t)), copy.deepcopy(t)]
    t.run(6, start=5)
    for twin in twins:
        assert_equal(twin.run(6, start=5).state(), t.state())


@with_parts
def test_costs_the_passes_it_declares(name):
    steps, skip = 60 if name in COST else 12, EXAMPLES.get(name, {}).get("warmup", 0)
    t = Training(name).run(skip)
    f, b = t.opt.samples_forward, t.opt.samples_backward
    t.run(steps, start=skip)
    samples = steps * BATCH
    measured = ((t.opt.samples_forward - f) / samples, (t.opt.samples_backward - b) / samples)
    low, high = COST.get(name, (0.0, 0.0))
    for cost, declared in zip(measured, t.opt.method.passes, strict=True):
        assert declared + low - 1e-9 <= cost <= declared + high + 1e-9
        assert cost >= 1.0


@every_method
def test_reports_what_it_declares_of_sharpness(name):
    t = Training(name)
    measured = []
    for step in range(14):
        feedback = t.backward(step)
        measured.append(bool(feedback.perturbed.isfinite().any()))
        assert feedback.loss.isfinite().all()
        t.opt.step()
        t.opt.zero_grad()
    how_often = "always" if all(measured) else "sometimes" if any(measured) else "never"
    assert how_often == t.opt.method.sharpness


@every_method
def test_its_docstring_explains_every_argument_and_the_cost(name):
    text = inspect.getdoc(METHODS[name])
    assert "Cost: " in text
    for argument in inspect.signature(METHODS[name]).parameters:
        assert f"{argument}: " in text, argument


@every_method
def test_does_not_touch_global_random_state(name):
    t = Training(name)
    before = torch.get_rng_state()
    t.run(6)
    assert torch.equal(torch.get_rng_state(), before)


@every_variant
def test_takes_a_closure_or_refuses_it_and_stays(name):
    t = Training(name)
    needs_rows = getattr(t.opt.method, "needs_rows", False)
    x, y, _ = t.batch(0)
    before = [p.detach().clone() for p in t.model.parameters()]

    def closure():
        t.opt.zero_grad()
        loss = F.cross_entropy(t.model(x), y)
        loss.backward()
        return loss

    if needs_rows:
        with refused(RuntimeError, "needs per-sample losses", "opt.backward(loss_fn, *batch)"):
            t.opt.step(closure)
    else:
        assert t.opt.step(closure).item() > 0
    stayed = all(torch.equal(p, w) for p, w in zip(t.model.parameters(), before, strict=True))
    assert stayed == needs_rows
