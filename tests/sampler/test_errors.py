"""Mistakes that a beginner makes: each gets a sentence with the remedy, and correct use gets none."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ausam import AUSampling, Feedback, Full, Indexed, Random, SelectiveBatchSampler, SelectiveStream, TopLoss
from tests.helpers import feedback, policy_for, refused

N = 24
DATA = TensorDataset(torch.randn(N, 2), torch.arange(N) % 3)


class Source(IterableDataset):
    def __iter__(self):
        yield 1


def feed(sampler, index):
    sampler.update(Feedback(torch.as_tensor(index), torch.ones(len(index)), torch.full((len(index),), 2.0)))


@pytest.mark.parametrize("name", ["Trusted", "TopLoss", "InfoBatch", "OrderDP", "EpsilonGreedy", "UCB", "Uncertainty"])
def test_a_policy_that_reads_scores_warns_if_none_has_arrived(name):
    sampler = SelectiveBatchSampler(N, 4, policy_for(name, N), epochs=4)
    list(sampler)
    with pytest.warns(UserWarning, match=r"No score has reached.*sampler\.set_epoch\(0\)") as caught:
        list(sampler)
    assert len(caught) == 1
    assert "perturbed" not in str(caught[0].message)


def test_a_signal_that_takes_two_visits_is_not_warned_about():
    sampler = SelectiveBatchSampler(N, 4, TopLoss(signal="progress"))
    for _ in range(2):
        for index in sampler:
            feed(sampler, index)


@pytest.mark.parametrize("name", ["Full", "Random", "Repeated", "ClassBalanced"])
def test_a_policy_that_reads_no_scores_does_not_warn(name):
    sampler = SelectiveBatchSampler(N, 4, policy_for(name, N), epochs=4)
    for _ in range(3):
        list(sampler)


def test_wrong_datasets_are_refused():
    with refused(TypeError, "DataLoader", "batches", "SelectiveBatchSampler(dataset"):
        SelectiveBatchSampler(DataLoader(DATA, batch_size=4), 4, Random())
    with refused(TypeError, "already Indexed", "once"):
        Indexed(Indexed(DATA))
    for source in (Source(), iter([1, 2])):
        with refused(TypeError, "no random access", "SelectiveStream", "sampler.pick(index)"):
            SelectiveBatchSampler(source, 5, Full())
    data = Indexed(DATA)
    for arguments in ({"batch_size": 8}, {}):
        with refused(TypeError, "DataLoader(sampler=...)", "batch_sampler=sampler"):
            list(DataLoader(data, sampler=SelectiveBatchSampler(data, 5, Full()), **arguments))


def test_wrong_feedback_and_indices_are_refused():
    sampler = SelectiveBatchSampler(N, 4, AUSampling(0.5, ramp=0, unbiased=True, full_epochs=0))
    sampler.update(feedback(next(iter(sampler))))
    with refused(TypeError, "not a list", "opt.backward"):
        sampler.update([0.5])
    with refused(ValueError, "no index", "Indexed(dataset)", "index=index"):
        sampler.update(Feedback(None, torch.ones(2), torch.ones(2)))
    with refused(TypeError, "loss", "is a list", "tensor"):
        sampler.update(Feedback(torch.arange(2), [1.0, 2.0], torch.ones(2)))
    assert torch.equal(sampler.weight([1, 2]), sampler.weight(torch.tensor([1, 2])))
    with refused(TypeError, "index is 'a'", "indices of one batch"):
        sampler.weight("a")
    with refused(ValueError, f"outside the dataset of {N}", f"from 0 to {N - 1}"):
        sampler.weight([N])
    with refused(TypeError, "keys is a list", "enumerate(names)"):
        SelectiveStream([(0, 0)], int, SelectiveBatchSampler(1, 1, Full()), keys=[])


def test_the_sampler_says_what_it_is():
    sampler = SelectiveBatchSampler(N, 4, AUSampling(0.5, ramp=0), seed=3)
    feed(sampler, next(iter(sampler)))
    for part in (f"{N} samples", "batch_size=4", "AUSampling(alpha=0.5", "seed=3", "next epoch 1", "4 samples have a"):
        assert part in repr(sampler)
    assert "rank 1 of 2" in repr(SelectiveBatchSampler(N, 5, Full(), rank=1, world_size=2))
