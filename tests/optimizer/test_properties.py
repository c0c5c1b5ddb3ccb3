"""What holds for every method and every policy in the tables, whatever the input; a new entry is tested unasked."""

import copy
import dataclasses
import itertools
import math
import random
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from ausam import METHODS, POLICIES, Feedback, Full, Scores, SelectiveBatchSampler, SharpnessAware
from ausam.common.tensors import ascent, norm
from tests.helpers import policy_for, property_test
from tests.helpers import values as values_of

REQUIRED = {"total_steps": 20, "epochs": 6}  # of entries that have no default for how long training lasts


def build(kind, **more):
    needed = [
        f.name
        for f in dataclasses.fields(kind)
        if f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    return kind(**{name: REQUIRED[name] for name in needed}, **more)


# -- methods: the weights come back ------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.bn, self.head = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.bn(self.body(x))))


def assert_same(now, before, names=None):
    for name in names or before:
        torch.testing.assert_close(now[name], before[name], rtol=0, atol=0, equal_nan=True, msg=name)


def tensors_in(x):
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, dict):
        for v in x.values():
            yield from tensors_in(v)
    elif isinstance(x, (list, tuple)):
        for v in x:
            yield from tensors_in(v)


class Trouble:
    """A loss function that fails, or returns what is not finite, or has no slope, in its call number ``when``."""

    def __init__(self, model, what, when):
        self.model, self.what, self.when, self.calls, self.hit = model, what, when, 0, None

    def __call__(self, x, y):
        self.calls += 1
        z = self.model(x)
        losses = functional.cross_entropy(z, y, reduction="none")
        if self.what == "flat":
            return 0.0 * losses, z
        if self.calls == self.when and self.what != "nothing":
            self.hit = "graph" if torch.is_grad_enabled() else "look"
            if self.what == "raise":
                raise KeyError("the user's own")
            # A factor, so that the gradient is not finite either.
            return losses * torch.tensor([float(self.what)] + [1.0] * (len(losses) - 1)), z
        return losses, z


@pytest.mark.parametrize("name", METHODS)
@property_test(25)
@given(
    seed=st.integers(0, 99),
    n=st.integers(4, 7),  # half of them must be enough for BatchNorm
    warm=st.integers(0, 2),
    what=st.sampled_from(["nothing", "raise", "inf", "nan", "flat"]),
    when=st.integers(1, 3),
    frozen=st.booleans(),
    groups=st.booleans(),
    adam=st.booleans(),
)
def test_weights_come_back(name, seed, n, warm, what, when, frozen, groups, adam):
    model = Net(seed)
    model.body.weight.requires_grad_(not frozen)
    rng = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 3, generator=rng), torch.randint(3, (n,), generator=rng)
    params = [{"params": [p], "lr": 0.1 + 0.1 * i} for i, p in enumerate(model.parameters())] if groups else None
    params = params or list(model.parameters())
    base = torch.optim.AdamW(params, lr=0.1) if adam else torch.optim.SGD(params, 0.1, momentum=0.9, weight_decay=0.1)
    opt = SharpnessAware(base, build(METHODS[name]), model)
    untouched = ["unused.weight", "unused.bias", *(["body.weight"] if frozen else [])]
    start = values_of(model)
    for _ in range(warm):
        opt.backward(Trouble(model, "nothing", 0), x, y, index=torch.arange(n))
        opt.step()
        opt.zero_grad()

    before, memory = values_of(model), copy.deepcopy(opt.state_dict())
    loss_fn = Trouble(model, what, when)
    failed = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the one that a step is skipped
        try:
            feedback = opt.backward(loss_fn, x, y, index=torch.arange(n))
        except KeyError:
            failed = True
    parameters = [k for k, _ in model.named_parameters()]
    assert_same(model.state_dict(), before, parameters)
    assert failed == (what == "raise" and loss_fn.hit is not None)
    if failed:
        assert_same(model.state_dict(), before)  # buffers too
        assert all(p.grad is None for p in model.parameters())
        assert opt.skipped == 0
    else:
        assert feedback.loss.shape == feedback.perturbed.shape == (n,)
        assert all(p.grad is None for p in model.unused.parameters())
        assert not frozen or model.body.weight.grad is None
        if what in ("inf", "nan") and loss_fn.hit == "graph":
            assert opt.skipped == 1
        if opt.skipped:
            assert what in ("inf", "nan")
            assert_same(model.state_dict(), before)
        else:
            assert int(model.bn.num_batches_tracked) == warm + 1
        held = {t.untyped_storage().data_ptr() for t in tensors_in(opt._memory)}
        assert not held & {p.grad.untyped_storage().data_ptr() for p in model.parameters() if p.grad is not None}
        opt.step()
        assert opt.steps == warm + 1 - opt.skipped
    if failed or opt.skipped:
        assert_same(model.state_dict(), before)
        now = opt.state_dict()
        for key in ("state", "param_groups"):
            for a, b in zip(tensors_in(now[key]), tensors_in(memory[key]), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=0)
        for a, b in zip(tensors_in(now["ausam"]["memory"]), tensors_in(memory["ausam"]["memory"]), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    assert_same(model.state_dict(), start, untouched)


@pytest.mark.parametrize("name", METHODS)
def test_a_nonfinite_step_raises_and_restores_if_asked(name):
    model = Net(0)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), build(METHODS[name]), model)
    opt.nonfinite = "raise"
    x, y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
    before = values_of(model)
    with pytest.raises(RuntimeError, match="not finite"):
        opt.backward(Trouble(model, "inf", 1), x, y, index=torch.arange(4))
    assert_same(model.state_dict(), before)
    assert all(p.grad is None for p in model.parameters())


@property_test(60)
@given(
    values=st.lists(st.none() | st.lists(st.floats(-100, 100), min_size=1, max_size=4), min_size=1, max_size=5),
    rho=st.floats(0, 10),
)
def test_the_ascent_has_length_rho_and_the_gradients_direction(values, rho):
    g = [None if v is None else torch.tensor(v, dtype=torch.float64) for v in values]
    e = ascent(g, rho)
    assert [t is None for t in e] == [t is None for t in g]
    length = math.sqrt(sum(x * x for v in values if v is not None for x in v))
    assert float(norm(g)) == pytest.approx(length)
    for a, b in zip(e, g, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b * (rho / (length + 1e-12)))


# -- policies: the sampler ---------------------------------------------------------------------------------------------


def feedback_for(index, rng):
    """Losses of which some are not finite, and outputs for policies that look at them."""
    n = len(index)
    loss, perturbed = torch.rand(n, generator=rng), torch.rand(n, generator=rng)
    for column in (loss, perturbed):
        column[torch.rand(n, generator=rng) < 0.1] = float("nan")
    return Feedback(torch.tensor(index), loss, perturbed, torch.randn(n, 3, generator=rng))


def epochs_of(sampler, epochs, seed, *, ask=False):
    """The batches of some epochs with the same feedback in every call."""
    rng = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        batches = []
        for index in sampler:
            batches.append(index)
            if ask:
                len(sampler)
            sampler.update(feedback_for(index, rng))
        yield batches


# n is small: all scores may have been NaN, and a mini-batch may be of one. Weights are not what is tested here.
OF_SMALL_SAMPLERS = pytest.mark.filterwarnings(
    "ignore:No score has reached the sampler",
    "ignore:.*with batch_size=1",
    "ignore:.*sampler.weight was never called",
)

SHAPES = {
    "n": st.integers(1, 40),
    "size": st.integers(1, 12),
    "drop_last": st.booleans(),
    "seed": st.integers(0, 2**40),
}


FROM_THE_FIRST = ("Random", "Repeated", "ClassBalanced", "OrderDP", "Trusted", "Weighted")  # no whole first epoch


def cut(n, size, drop_last):
    """Sizes of the mini-batches of n samples: a short one goes with drop_last, unless it is the only one."""
    sizes = [size] * (n // size)
    return sizes + ([n % size] if n % size and not (sizes and drop_last) else [])


def make(policy, n, size, drop_last, seed):
    return SelectiveBatchSampler(n, min(size, n), policy, drop_last=drop_last, seed=seed)


@OF_SMALL_SAMPLERS
@pytest.mark.parametrize("name", POLICIES)
@property_test(40)
@given(**SHAPES)
def test_every_epoch_is_in_order(name, n, size, drop_last, seed):
    policy = policy_for(name, n)
    sampler = make(policy, n, size, drop_last, seed)
    size = min(size, n)
    whole = [size] * (n // size) + ([n % size] if n % size and not drop_last else [])
    for epoch in range(4):
        assert sampler.epoch == epoch
        expected = len(sampler)
        batches = next(epochs_of(sampler, 1, seed + epoch))
        sizes = [len(b) for b in batches]
        flat = list(itertools.chain(*batches))
        assert len(batches) == expected
        assert len(set(flat)) == len(flat)
        assert all(0 <= i < n for i in flat)
        assert all(type(i) is int for i in flat)
        alpha = 1.0 if epoch == 0 and name not in FROM_THE_FIRST else getattr(policy, "alpha", 1.0)
        if policy.scope == "batch":
            assert sizes == [max(1, int(alpha * s)) for s in whole]
        elif name in ("OrderDP", "Repeated"):  # alpha is a fraction of a fraction, or an average over epochs
            assert sizes == cut(policy.count(epoch, n), size, drop_last)
        elif hasattr(policy, "alpha") or epoch == 0:
            assert sizes == cut(max(1, int(alpha * n)), size, drop_last)
        else:
            assert sizes == cut(len(flat), size, drop_last)
            assert sum(sizes) <= sum(cut(n, size, drop_last))


@OF_SMALL_SAMPLERS
@pytest.mark.parametrize("name", POLICIES)
@property_test(15)
@given(**SHAPES)
def test_seeded_and_independent_of_global_randomness(name, n, size, drop_last, seed):
    torch.manual_seed(1)
    one = list(epochs_of(make(policy_for(name, n), n, size, drop_last, seed), 3, seed=7))
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    random.seed(2)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    sampler = make(policy_for(name, n), n, size, drop_last, seed)
    two = list(epochs_of(sampler, 3, seed=7, ask=True))  # asking for the length changes nothing
    assert one == two
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (np.random.get_state()[1].tolist(), random.getstate())  # noqa: NPY002
    if n >= 12:  # 12! orders: never the same by chance
        other = make(policy_for(name, n), n, size, drop_last, seed + 1)
        assert next(epochs_of(other, 1, seed=7)) != one[0]


@OF_SMALL_SAMPLERS
@pytest.mark.parametrize("name", [k for k, v in POLICIES.items() if "alpha" in {f.name for f in dataclasses.fields(v)}])
@property_test(15)
@given(**SHAPES)
def test_alpha_one_is_full(name, n, size, drop_last, seed):
    whole = make(Full(), n, size, drop_last, seed)
    part = make(policy_for(name, n, alpha=1.0), n, size, drop_last, seed)
    for a, b in zip(epochs_of(whole, 3, seed=7), epochs_of(part, 3, seed=7), strict=True):
        assert a == b


@OF_SMALL_SAMPLERS
@pytest.mark.parametrize("name", POLICIES)
@property_test(15)
@given(stop=st.integers(0, 1000), **SHAPES)
def test_resume_anywhere(name, n, size, drop_last, seed, stop):
    def values(index, epoch):
        return feedback_for(index, torch.Generator().manual_seed(1000 * epoch + min(index)))

    def go(sampler, batches):
        """Train on so many batches, beginning a new epoch where one ends."""
        seen = []
        while len(seen) < batches:
            for index in sampler:
                seen.append(index)
                sampler.update(values(index, sampler.epoch))
                if len(seen) == batches:
                    break
        return seen

    whole = make(policy_for(name, n), n, size, drop_last, seed)
    total = 3 * len(whole)
    expected = go(whole, total)
    done = stop % total
    first = make(policy_for(name, n), n, size, drop_last, seed)
    seen = go(first, done)
    second = make(policy_for(name, n), n, size, drop_last, 0)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert seen + go(second, total - done) == expected
    for a, b in zip(tensors_in(second.scores.state_dict()), tensors_in(whole.scores.state_dict()), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


# -- scores ------------------------------------------------------------------------------------------------------------


@property_test(120)
@given(
    decay=st.sampled_from([1.0, 0.0, 0.5, 0.9, 0.99]),
    updates=st.lists(
        st.dictionaries(st.integers(0, 5), st.floats(0, 100, width=32) | st.sampled_from([math.nan, math.inf])),
        max_size=12,
    ),
)
def test_scores_against_lists(decay, updates):
    scores = Scores(6, decay)
    history = {i: [] for i in range(6)}
    for update in updates:
        scores.record(torch.tensor(list(update), dtype=torch.int64), torch.tensor(list(update.values())))
        for i, value in update.items():
            if math.isfinite(value):
                history[i].append(value)
    assert scores.count.tolist() == [len(history[i]) for i in range(6)]
    for i, seen in history.items():
        if not seen:
            assert math.isnan(float(scores.mean[i]))
            assert math.isnan(float(scores.last[i]))
            continue
        weights = [decay ** (len(seen) - 1 - j) for j in range(len(seen))]
        mean = sum(w * v for w, v in zip(weights, seen, strict=True)) / sum(weights)
        assert float(scores.mean[i]) == pytest.approx(mean, rel=1e-4, abs=1e-4)
        assert float(scores.last[i]) == seen[-1]
        assert float(scores.of(torch.tensor([i]))) == float(scores.mean[i])
    twin = Scores(6, decay)
    twin.load_state_dict(scores.state_dict())
    for a, b in ((twin.sum, scores.sum), (twin.count, scores.count), (twin.last, scores.last)):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        assert a.data_ptr() != b.data_ptr()
