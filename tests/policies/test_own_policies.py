"""Policies and signals of the user's own: what the base class gives, and what is refused."""

from dataclasses import dataclass, fields

import pytest
import torch

from ausam import (
    UCB,
    EpsilonGreedy,
    Feedback,
    Full,
    Policy,
    Random,
    SelectiveBatchSampler,
    TopLoss,
    Uncertainty,
)
from ausam.policies.signals import SIGNALS
from tests.helpers import refused


@dataclass(frozen=True)
class FirstOnes(Policy):
    """Four lines and a docstring."""

    alpha: float = 0.5

    def select(self, scores, epoch, candidates, rng):
        return torch.arange(self.count(epoch, candidates.shape[1])).expand(len(candidates), -1), None


def margin(feedback):
    top = feedback.outputs.topk(2).values
    return top[:, 1] - top[:, 0]


class Last:
    """A callable object that cannot be hashed."""

    __hash__ = None

    def __eq__(self, other):
        return isinstance(other, Last)

    def __call__(self, feedback):
        return feedback.outputs[:, -1]


def some_feedback(n=6):
    rng = torch.Generator().manual_seed(n)
    return Feedback(torch.arange(n), torch.rand(n, generator=rng), torch.rand(n), torch.randn(n, 3, generator=rng))


def test_a_policy_inherits_from_the_base_class():
    for other in (Full, "full", type("Unrelated", (), {"choose": FirstOnes.choose})()):
        with refused(TypeError, f"policy is {other!r}", "AUSampling(alpha=0.5)", "ausam.Policy"):
            SelectiveBatchSampler(10, 4, other)


def test_a_policy_that_does_not_say_what_it_keeps_is_refused():
    policy = type("Silent", (Policy,), {"alpha": 0.5})()
    sampler = SelectiveBatchSampler(10, 4, policy)
    assert sum(len(batch) for batch in sampler) == 10
    with pytest.raises(NotImplementedError, match=r"Silent leaves samples out.*Define select"):
        list(sampler)


@pytest.mark.parametrize("full_epochs", [0, 1, 3])
def test_the_first_epochs_are_full(full_epochs):
    policy = type("Mine", (FirstOnes,), {"full_epochs": full_epochs})()
    sampler = SelectiveBatchSampler(10, 5, policy)
    assert [sum(map(len, sampler)) for _ in range(4)] == [10] * full_epochs + [4] * (4 - full_epochs)


def test_arguments_keep_their_position():
    assert [f.name for f in fields(UCB)] == ["alpha", "c", "signal", "decay", "period"]
    assert [f.name for f in fields(EpsilonGreedy)] == ["alpha", "eps", "signal", "decay", "period"]
    assert [f.name for f in fields(Uncertainty)] == ["alpha", "period"]
    assert [f.name for f in fields(Full)] == []
    assert UCB(0.3, 2.0, "wrong", 0.1, 4) == UCB(alpha=0.3, c=2.0, signal="wrong", decay=0.1, period=4)


# -- signals -----------------------------------------------------------------------------------------------------------


class AsMethod(Random):
    """A signal that is a method of the policy."""

    def signal(self, feedback):
        return margin(feedback)


class AsStaticMethod(Random):
    """A function as an attribute of the class."""

    signal = staticmethod(margin)


@pytest.mark.parametrize(
    "policy",
    [TopLoss(signal=margin), UCB(signal=margin, decay=0.0), EpsilonGreedy(signal=margin), AsMethod(), AsStaticMethod()],
    ids=lambda p: type(p).__name__,
)
def test_a_function_of_the_feedback_is_a_signal(policy):
    feedback = some_feedback()
    sampler = SelectiveBatchSampler(6, 3, policy)
    sampler.update(feedback)
    torch.testing.assert_close(sampler.scores.mean, margin(feedback))
    again = SelectiveBatchSampler(6, 3, policy)
    again.load_state_dict(sampler.state_dict())
    assert torch.equal(again.scores.mean, sampler.scores.mean)
    assert list(again) == list(sampler)


def test_a_callable_object_is_a_signal():
    sampler = SelectiveBatchSampler(6, 3, TopLoss(signal=Last()))
    sampler.update(some_feedback())
    assert torch.equal(sampler.scores.mean, some_feedback().outputs[:, -1])
    assert sampler.state_dict()["signal"].endswith("test_own_policies.Last")


def test_a_registered_name_is_a_signal(monkeypatch):
    monkeypatch.setitem(SIGNALS, "margin", margin)
    sampler = SelectiveBatchSampler(6, 3, TopLoss(signal="margin"))
    sampler.update(some_feedback())
    torch.testing.assert_close(sampler.scores.mean, margin(some_feedback()))
    assert sampler.state_dict()["signal"] == "margin"


def test_signals_that_cannot_work_are_refused():
    for result, words in ((3.0, "a float"), (torch.ones(2), "shape (2,)"), (torch.ones(6, 1), "shape (6, 1)")):
        sampler = SelectiveBatchSampler(6, 3, TopLoss(signal=lambda feedback, r=result: r))
        with refused(TypeError, words, "one value per sample", "(6,)"):
            sampler.update(some_feedback())
        assert not sampler.scores.known


def test_scores_of_another_function_are_refused():
    saved = SelectiveBatchSampler(6, 3, TopLoss(signal=margin)).state_dict()
    with refused(ValueError, "test_own_policies.margin", "loss", "Resume with the policy"):
        SelectiveBatchSampler(6, 3, TopLoss()).load_state_dict(saved)
