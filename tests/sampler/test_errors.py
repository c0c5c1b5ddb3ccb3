"""Mistakes that a beginner makes: each gets a sentence with the remedy, and correct use gets none."""

import copy
import warnings

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from ausam import (
    AUSampling,
    Feedback,
    Full,
    Indexed,
    InfoBatch,
    Random,
    Repeated,
    SelectiveBatchSampler,
    TopLoss,
)
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
        for build in (Indexed, lambda source: SelectiveBatchSampler(source, 5, Full())):
            with refused(TypeError, type(source).__name__, "SelectiveStream", "sampler.pick(index)"):
                build(source)
    with refused(ValueError, 'a key "index"', 'Indexed(dataset, key="...")'):
        Indexed([{"index": 1}])[0]
    with refused(TypeError, "inside Subset", "Indexed(Subset(...))"):
        SelectiveBatchSampler(Subset(Indexed(range(10)), [1, 2]), 2, Full())
    data = Indexed(DATA)
    for arguments in ({"batch_size": 8}, {}):
        with refused(TypeError, "DataLoader(sampler=...)", "batch_sampler=sampler"):
            list(DataLoader(data, sampler=SelectiveBatchSampler(data, 5, Full()), **arguments))


def test_wrong_feedback_and_indices_are_refused():
    sampler = SelectiveBatchSampler(N, 4, AUSampling(0.5, ramp=0, unbiased=True, full_epochs=0))
    index = next(iter(sampler))
    sampler.weight(index)
    sampler.update(feedback(index))
    with refused(TypeError, "not a list", "opt.backward"):
        sampler.update([0.5])
    with refused(ValueError, "no index", "Indexed(dataset)", "index=index"):
        sampler.update(Feedback(None, torch.ones(2), torch.ones(2)))
    with refused(TypeError, "loss", "is a list", "tensor"):
        sampler.update(Feedback(torch.arange(2), [1.0, 2.0], torch.ones(2)))
    assert torch.equal(sampler.weight([1, 2]), sampler.weight(torch.tensor([1, 2])))
    with refused(ValueError, f"outside the dataset of {N}", f"from 0 to {N - 1}"):
        sampler.weight([N])


# -- what went wrong in silence ----------------------------------------------------------------------------------------


def warnings_of(run, words):
    """How many warnings with these words ``run`` shows, with Python's own filter."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        run()
    return sum(words in str(w.message) for w in caught)


def a_pass(sampler, index_of):
    for batch in sampler:
        feed(sampler, index_of(batch))


def test_positions_in_the_batch_are_not_its_index():
    sampler = SelectiveBatchSampler(N, 4, AUSampling(0.5, ramp=0))
    assert (
        warnings_of(lambda: [a_pass(sampler, lambda b: range(len(b))) for _ in range(2)], "torch.arange(len(x))") == 1
    )
    right = SelectiveBatchSampler(N, 4, AUSampling(0.5, ramp=0))
    a_pass(right, lambda batch: batch)
    a_pass(right, lambda batch: batch[:1])  # in parts


def test_losses_of_a_whole_pass_at_its_end_are_not_warned_about():
    sampler = SelectiveBatchSampler(N, 4, AUSampling(0.5, ramp=0))
    for _ in range(3):
        list(sampler)
        feed(sampler, range(N))


@pytest.mark.parametrize("policy", [AUSampling(0.5, ramp=0, unbiased=True), InfoBatch()], ids=["unbiased", "InfoBatch"])
def test_weights_that_nobody_uses_are_warned_about(policy):
    def train(weigh):
        sampler = SelectiveBatchSampler(N, 4, policy)
        for _ in range(3):
            for index in sampler:
                if weigh:
                    sampler.weight(torch.tensor(index))
                loss = torch.tensor(index).float()
                sampler.update(Feedback(torch.tensor(index), loss, 2 * loss))

    assert warnings_of(lambda: train(False), "weight=sampler.weight(index)") == 1
    assert warnings_of(lambda: train(True), "weight=sampler.weight(index)") == 0


def test_mini_batches_of_one_leave_nothing_out():
    with pytest.warns(UserWarning, match=r"Random .*batch_size=1 .*larger batch_size"):
        sampler = SelectiveBatchSampler(N, 1, Random(0.5))
    assert sum(map(len, sampler)) == N
    for policy in (Full(), Repeated(0.5), Random(1.0)):
        SelectiveBatchSampler(N, 1, policy)
    SelectiveBatchSampler(N, 2, Random(0.5))


def test_indices_are_whole_numbers():
    sampler = SelectiveBatchSampler(N, 4, AUSampling(0.5, ramp=0))
    bad = torch.tensor([1.7, 3.0])
    for act in (
        lambda: sampler.pick(bad),
        lambda: sampler.weight([True, False]) or sampler.pick([True, False]),
        lambda: sampler.scores.set([0.0, 1.0], [1.0, 1.0]),
        lambda: sampler.scores.record(bad, torch.ones(2)),
    ):
        with refused(TypeError, "whole numbers", "Indexed(dataset)"):
            act()
    with refused(TypeError, "float32", "int64"):
        Feedback(bad, torch.ones(2), torch.ones(2))
    assert not sampler.scores.known


@pytest.mark.parametrize("change", [-1, 1])
def test_a_dataset_must_not_change_its_length(change):
    data = list(range(N))
    sampler = SelectiveBatchSampler(Indexed(data), 4, Full())
    list(sampler)
    data[N + min(change, 0) :] = [0] * max(change, 0)
    with refused(RuntimeError, f"had {N} samples", f"{N + change} now", "a new SelectiveBatchSampler"):
        list(sampler)
    copied = copy.deepcopy(sampler)  # without the dataset, like a sampler of a number
    assert sum(map(len, copied)) == N
    if change < 0:
        with refused(IndexError, f"has {N - 1} samples now", "a new SelectiveBatchSampler"):
            list(DataLoader(Indexed(data), batch_sampler=copied))


def test_parts_that_are_indexed_each():
    with refused(TypeError, "Indexed(ConcatDataset(...))"):
        SelectiveBatchSampler(ConcatDataset([Indexed(DATA), Indexed(DATA)]), 4, Full())
    SelectiveBatchSampler(Indexed(ConcatDataset([DATA, DATA])), 4, Full())
