"""A signal inside update or load_state_dict changes everything or nothing: scores, position, what waits."""

from __future__ import annotations

import pytest
import torch

from ausam import UCB, AUSampling, SelectiveBatchSampler, SelectiveStream
from tests import signals
from tests.helpers import feedback, few_or_many
from tests.signals import cut_off

N = 64

pytestmark = pytest.mark.skipif(not signals.HERE, reason="this system has no timer signals")


class Sampler:
    """A sampler in the middle of its second epoch."""

    def __init__(self, policy):
        self.policy = policy
        self.reset()
        self.update()
        self.other = self.state()
        self.reset()

    def reset(self):
        self.owner = self.sampler = SelectiveBatchSampler(N, 16, self.policy, seed=1)
        self.begin()

    def begin(self):
        for index in self.indices():
            self.owner.update(feedback(index))
        self.batches = self.indices()  # kept, so that the pass is not over
        self.index = next(self.batches)

    def indices(self):
        return iter(self.sampler)

    def state(self):
        return self.owner.state_dict()

    def update(self):
        self.owner.update(feedback(self.index))

    def load(self):
        self.owner.load_state_dict(self.other)


class Stream(Sampler):
    """The same for a stream."""

    def reset(self):
        self.sampler = SelectiveBatchSampler(N, 16, self.policy, seed=1)
        self.owner = SelectiveStream([(i, i) for i in range(N)], lambda raw: (float(raw), 0), self.sampler)
        self.begin()

    def indices(self):
        return (index for _, _, index in self.owner)


@pytest.mark.parametrize("count", few_or_many(10, 250))
@pytest.mark.parametrize("name", ["update", "load"])
@pytest.mark.parametrize(
    ("kind", "policy"),  # a stream takes no policy of scope epoch
    [(Sampler, AUSampling(0.5, ramp=0)), (Sampler, UCB(0.5, period=1)), (Stream, AUSampling(0.5, ramp=0))],
    ids=["sampler-batch", "sampler-epoch", "stream"],
)
def test_a_signal_leaves_all_or_nothing(kind, policy, name, count):
    subject = kind(policy)
    subject.call = lambda: getattr(subject, name)()
    cut_off(subject, count)


@pytest.mark.parametrize("policy", [AUSampling(0.5, ramp=0), UCB(0.5, period=1)], ids=["batch", "epoch"])
def test_loading_never_disables_gradients(policy, monkeypatch):
    """As copy.deepcopy of a tensor does: a signal at that moment would leave them disabled."""
    subject = Sampler(policy)

    def refuse(_):
        raise AssertionError("gradients are disabled here")

    monkeypatch.setattr(torch.no_grad, "__enter__", refuse)
    subject.load()
    subject.state()
