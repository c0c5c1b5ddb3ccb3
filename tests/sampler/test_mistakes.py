"""Mistakes that the sampler can see from how it is used: each gets one sentence, and correct use gets none."""

import contextlib
import copy
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ausam import AUSampling, Feedback, Indexed, Random, SelectiveBatchSampler, TopLoss, Trusted
from tests.helpers import policy_for, refused

N = 24
DATA = TensorDataset(torch.randn(N, 2), torch.arange(N) % 3)
LABELS = DATA.tensors[1]


def new(policy=None):
    return SelectiveBatchSampler(N, 4, policy or Trusted(LABELS, start=1))


def feed(sampler, index):
    sampler.update(Feedback(torch.as_tensor(index), torch.ones(len(index)), torch.full((len(index),), 2.0)))


# -- a batch that does not fit the loop --------------------------------------------------------------------------------


def taken_apart(loader, update):
    for _x, _y, _index in loader:
        pass


def numbered(loader, update):
    for _step, (_x, _y, _index) in enumerate(loader):
        pass


def taken_apart_in_the_body(loader, update):
    for batch in loader:
        _x, _y, _index = batch


def without_index(loader, update):
    for _x, _y in loader:
        pass


def peek(loader, update):
    _x, _y, _index = next(iter(loader))


def broken_off(loader, update):
    for _x, _y, _index in loader:
        break


def with_an_error(loader, update):
    for _x, _y, _index in loader:
        raise ValueError


def with_an_error_later(loader, update):
    for x, _y, index in loader:
        update(index)
        _a, _b = x.shape, x, index


def trained(loader, update):
    for _x, _y, index in loader:
        update(index)


def warnings_of(loop, data, workers=0):
    """What is said while the loop runs, which may end with an error."""
    sampler = SelectiveBatchSampler(data, 2, AUSampling(ramp=1))
    loader = DataLoader(data, batch_sampler=sampler, num_workers=workers)
    with warnings.catch_warnings(record=True) as caught, contextlib.suppress(ValueError):
        warnings.simplefilter("always")
        loop(loader, lambda index: feed(sampler, index))
    return [str(w.message) for w in caught if "fork" not in str(w.message)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loop", [taken_apart, numbered, taken_apart_in_the_body])
def test_a_forgotten_index(loop, workers):
    (said,) = warnings_of(loop, DATA, workers)
    assert "train = Indexed(train_set)" in said
    assert "for x, y, index in loader" in said


def test_a_forgotten_name_for_the_index():
    (said,) = warnings_of(without_index, Indexed(DATA))
    assert "for x, y, index in loader" in said


@pytest.mark.parametrize("loop", [peek, broken_off, trained, with_an_error, with_an_error_later])
def test_what_is_no_forgotten_index(loop):
    assert warnings_of(loop, Indexed(DATA)) == []


# -- passes without update ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Trusted", "TopLoss", "InfoBatch", "OrderDP", "EpsilonGreedy", "UCB", "Uncertainty"])
def test_a_policy_that_reads_scores_says_that_none_has_arrived(name):
    sampler = SelectiveBatchSampler(N, 4, policy_for(name, N), epochs=4)
    list(sampler)
    with pytest.warns(UserWarning, match=r"No score has reached.*every pass counts as an epoch") as caught:
        list(sampler)
    assert len(caught) == 1
    assert "perturbed" not in str(caught[0].message)


def test_a_signal_that_takes_two_visits():
    sampler = new(TopLoss(signal="progress"))
    for _ in range(2):
        for index in sampler:
            feed(sampler, index)


@pytest.mark.parametrize("name", ["Full", "Random", "Repeated", "ClassBalanced"])
def test_a_policy_that_reads_none_says_nothing(name):
    sampler = SelectiveBatchSampler(N, 4, policy_for(name, N), epochs=4)
    for _ in range(3):
        list(sampler)


def test_the_loader_is_used_for_evaluation_as_well():
    sampler = new()
    for index in sampler:
        feed(sampler, index)
    list(sampler)  # the evaluation
    with pytest.warns(UserWarning, match=r"epoch 1 had no sampler\.update.*DataLoader of its own") as caught:
        list(sampler)
    list(sampler)
    assert len(caught) == 1


def test_a_training_without_evaluation_and_its_copy_say_nothing():
    sampler = new()
    for epoch in range(4):
        for index in sampler:
            feed(sampler, index)
            if epoch == 2:
                break
        if epoch == 2:
            sampler = copy.deepcopy(sampler)
    sampler.load_state_dict(sampler.state_dict())
    for index in sampler:
        feed(sampler, index)


@pytest.mark.parametrize("policy", [AUSampling(ramp=1), Random()])
def test_an_update_that_comes_twice(policy):
    sampler = new(policy)
    batches = iter(sampler)
    index = next(batches)
    feed(sampler, index)
    with pytest.warns(UserWarning, match=r"more samples than .* handed out.*once per batch") as caught:
        feed(sampler, index)
    feed(sampler, next(batches))
    assert len(caught) == 1


def test_scores_from_elsewhere_between_two_passes():
    sampler = new()
    next(iter(sampler))
    feed(sampler, range(N))
    for _ in range(2):
        for index in sampler:
            feed(sampler, index)
        feed(sampler, range(N))


# -- what is given to it -----------------------------------------------------------------------------------------------


def test_a_loader_in_the_place_of_the_dataset():
    with refused(TypeError, "DataLoader", "batches", "SelectiveBatchSampler(dataset"):
        SelectiveBatchSampler(DataLoader(DATA, batch_size=4), 4, Random())


def test_indexed_twice():
    with refused(TypeError, "already Indexed", "once"):
        Indexed(Indexed(DATA))
