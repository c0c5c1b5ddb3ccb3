"""What several tests share: a network, data, a working example of every method, and comparisons bit for bit."""

from __future__ import annotations

import contextlib
import io
import math
import statistics

import hypothesis
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from ausam import AESAM, METHODS, POLICIES, RST, SAM, WSAM, Feedback, LookSAM, SharpnessAware
from ausam.common.random import generator

# Arguments that have no default, or one that is meant for trainings longer than a test.
EXAMPLES = {
    "AESAM": {"total_steps": 60},
    "ClassBalanced": {"labels": [0, 1, 1]},
    "ESAM": {"gamma": 0.5},
    "LookSAM": {"k": 4},
    "MESA": {"start": 0, "decay": 0.9},
    "MomentumSAM": {"rho": 0.3},
    "SAF": {"start": 0, "gap": 1},
    "Trusted": {"labels": [0, 1, 1], "epochs": 2},
    "VSAM": {"window": 6, "blocks": 2, "warmup": 4},
}

# Methods with settings that make them remember or mix more than their example does.
VARIANTS = {
    "AE-LookSAM": lambda: AESAM(LookSAM(0.2), total_steps=30),
    "SAM-groups": lambda: SAM(0.2, m=5),
    "SAM-ascent": lambda: SAM(0.2, ascent=0.5),
    "RST-mixed": lambda: RST(SAM(0.2), schedule="linear", gamma=2.0, total_steps=14),
    "WSAM-coupled": lambda: WSAM(0.2, gamma=0.6, decouple=False),
}


def policy_for(name, n, **settings):
    """The policy of this name for n samples."""
    needed = {
        "AUSampling": {"ramp": 30},
        "ClassBalanced": {"labels": torch.arange(n) * torch.arange(n) % 5},
        "Trusted": {"labels": torch.arange(n) * torch.arange(n) % 3, "epochs": 4},
        "Weighted": {"alpha": 0.5, "replacement": False},
    }
    return POLICIES[name](**{**needed.get(name, {}), **settings})


def make(name):
    """The method of this name, with settings that show what it does within a few steps."""
    return VARIANTS[name]() if name in VARIANTS else METHODS[name](**EXAMPLES.get(name, {}))


# -- a network and its data --------------------------------------------------------------------------------------------


def network(seed=0, batchnorm=True, dtype=torch.float32):
    """4 features, 6 hidden units, 3 classes."""
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(6)] if batchnorm else []
    return nn.Sequential(nn.Linear(4, 6), *middle, nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def data(seed=0, n=8, dtype=torch.float32):
    """A batch for it, another for each seed."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=rng, dtype=dtype), torch.randint(3, (n,), generator=rng)


def losses_of(model):
    """The per-sample losses of a batch."""
    return lambda x, y: F.cross_entropy(model(x), y, reduction="none")


def with_logits(model):
    """The same, and the logits."""

    def losses(x, y):
        z = model(x)
        return F.cross_entropy(z, y, reduction="none"), z

    return losses


def optimizer(model, method, *, lr=0.1, momentum=0.9, **settings):
    """SGD for the model, driven by the method."""
    return SharpnessAware(torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum), method, model, **settings)


def train(opt, model, steps, first=0):
    """Steps on the batches of seeds ``first``, ``first + 1``, and so on."""
    for step in range(first, first + steps):
        opt.backward(losses_of(model), *data(step))
        opt.step()
        opt.zero_grad()


def feedback(index, epoch=0):
    """Made-up losses and outputs, the same for a sample in an epoch whoever asks."""
    i = torch.as_tensor(index)
    loss = ((i * 37 + epoch * 11) % 17).float() / 17
    outputs = torch.stack([((i * k + 3 * epoch) % 7).float() for k in (1, 2, 3)], 1)
    return Feedback(i, loss, loss + ((i * 13 + epoch * 5) % 19).float() / 19, outputs)


class Closed:
    """A method that cannot be entered half-way."""

    sharpness = "always"
    passes = (2.0, 2.0)

    def gradient(self, step):
        return step.gradient()


# -- two lanes ---------------------------------------------------------------------------------------------------------


def few_or_many(few, many):
    """Parameters of a test: a few repetitions in ``make test``, many in ``make test-all``."""
    return [few, pytest.param(many, marks=pytest.mark.nightly)]


def few_of(names, *few):
    """Parameters of a test: these few in ``make test``, all of the names in ``make test-all``."""
    return [name if name in few else pytest.param(name, marks=pytest.mark.nightly) for name in names]


def property_test(examples):
    """A property test of so many examples in ``make test-all``, of a quarter of them in ``make test``."""
    return hypothesis.settings(max_examples=examples * hypothesis.settings().max_examples // 100)


# -- comparing ---------------------------------------------------------------------------------------------------------


def values(model):
    """A copy of the weights and buffers, by name."""
    return {k: v.clone() for k, v in model.state_dict().items()}


def flat(tensors):
    """All numbers in one vector."""
    return torch.cat([t.reshape(-1) for t in tensors])


def weights(model):
    """A copy of the parameters in one vector."""
    return flat(model.parameters()).detach().clone()


def through_a_file(state):
    """A state, saved and loaded again as a stranger's file would be."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class Elsewhere(torch.Tensor):
    """Stands for a tensor on a GPU: whatever is computed from it stays there, until it is brought to the CPU."""

    def numpy(self, **_):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def tolist(self):
        return self.cpu().tolist()

    def cpu(self):
        return self.to("cpu")

    def to(self, *where, **how):
        return super().to(*where, **how).as_subclass(torch.Tensor)


def moved(state):
    """A state as ``torch.load(file, map_location="cuda")`` returns it."""
    return tree_map(lambda x: x.as_subclass(Elsewhere) if isinstance(x, torch.Tensor) else x, state)


def assert_equal(a, b):
    """Bit for bit, tensors in nested dicts and lists too."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        if not torch.equal(a, b):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for k in a:
            assert_equal(a[k], b[k])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    else:
        assert a == b


def same_weights(a, b, *, rtol=0.0, atol=0.0):
    """Two models have equal parameters and buffers, whatever their names."""
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(x, y, rtol=rtol, atol=atol, msg=name)


def same(a, b):
    """Whether they are equal in this sense."""
    try:
        assert_equal(a, b)
    except AssertionError:
        return False
    return True


@contextlib.contextmanager
def refused(kind, *parts):
    """An error of this kind whose message holds these parts: what was found, and the remedy."""
    with pytest.raises(kind) as error:
        yield error
    for part in parts:
        assert part in str(error.value)


# -- the order of an epoch ---------------------------------------------------------------------------------------------


def order_of_epoch(n, seed, epoch):
    """All samples in the order of an epoch."""
    return torch.randperm(n, generator=generator(seed, epoch, 0)).tolist()


def order_of_candidates(n, seed, epoch):
    """All samples in the order in which a policy of scope "epoch" gets them."""
    return torch.randperm(n, generator=generator(seed, epoch, 3)).tolist()


def order_of_choice(chosen, seed, epoch):
    """The samples that a policy of scope "epoch" chose, in the order in which they are used."""
    return [sorted(chosen)[k] for k in order_of_epoch(len(chosen), seed, epoch)]


# -- AUSampling, slowly ------------------------------------------------------------------------------------------------


def quantile(values, q):
    """By linear interpolation between the sorted values."""
    values = sorted(values)
    place = q * (len(values) - 1)
    below, above = math.floor(place), math.ceil(place)
    return values[below] + (place - below) * (values[above] - values[below])


def slow_share(x, g, odds):
    """Where a score lies among those of its mini-batch."""
    if odds == "rank":
        return (sum(y < x for y in g) + sum(y <= x for y in g) - 1) / 2 / (len(g) - 1)
    if odds == "proportional":
        return max(x, 0.0) / statistics.fmean(max(y, 0.0) for y in g)
    return (x - min(g)) / (max(g) - min(g))


def slow_odds(g, s_min, s_max, trim=None, mix=0.0, odds="minmax"):
    """Equations 7 and 8 of the paper, sample by sample, without the division by the sum; None is an unknown score."""
    known = [x for x in g if x is not None]
    mean = statistics.fmean(known) if known else 0.0
    g = [mean if x is None else x for x in g]
    if trim is not None:
        edge, lowest = quantile(g, trim), min(g)
        g = [lowest if x > edge else x for x in g]
    o = [s_min + slow_share(x, g, odds) * (s_max - s_min) if max(g) > min(g) else 1.0 for x in g]
    return [(1 - mix) * x / sum(o) + mix / len(g) for x in o] if mix else o


def same_audit(one, other):
    """Two audits have the same state."""
    theirs = other.state_dict()
    for name, mine in one.state_dict().items():
        np.testing.assert_equal(np.asarray(mine), np.asarray(theirs[name]), err_msg=name)
