"""AUSampling's ramp as a fraction of the epochs: what it amounts to, who knows the epochs, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch

from ausam import AUSampling, Feedback, InfoBatch, Random, SelectiveBatchSampler, SelectiveStream


def epoch_of(sampler):
    batches = []
    for index in sampler:
        loss = torch.arange(len(index)) / 10
        sampler.update(Feedback(torch.tensor(index), loss, loss + torch.tensor(index) / 7))
        batches.append(list(index))
    return batches


@pytest.mark.parametrize(
    ("epochs", "whole"), [(200, 30), (120, 18), (100, 15), (40, 6), (30, 5), (20, 3), (10, 2), (4, 1), (1, 1)]
)
def test_the_default_is_the_papers_fraction_in_whole_epochs(epochs, whole):
    assert AUSampling(epochs=epochs).ramp_epochs == whole


def test_a_fraction_draws_as_the_whole_number_does_to_the_last_bit():
    part = SelectiveBatchSampler(60, 20, AUSampling(0.5), epochs=20, seed=1)
    whole = SelectiveBatchSampler(60, 20, AUSampling(0.5, ramp=3), seed=1)
    other = SelectiveBatchSampler(60, 20, AUSampling(0.5, ramp=0), seed=1)
    epochs = [[epoch_of(sampler) for _ in range(5)] for sampler in (part, whole, other)]
    assert epochs[0] == epochs[1] != epochs[2]


def test_whole_numbers_count_epochs_however_they_are_written():
    for ramp in (5, 5.0, torch.tensor(5.0)):
        policy = AUSampling(ramp=ramp)
        assert (policy, type(policy.ramp), policy.ramp_epochs) == (AUSampling(ramp=5), int, 5)
    assert AUSampling(ramp=1.0).ramp_epochs == 1
    assert AUSampling(ramp=0.0).ramp_epochs == 0
    assert AUSampling(ramp=5, epochs=30) == AUSampling(ramp=5)  # so a run with it can be made longer
    assert AUSampling(epochs=30) != AUSampling(epochs=60)


def test_without_the_number_of_epochs_a_fraction_is_refused_before_the_first_batch():
    sampler = SelectiveBatchSampler(8, 4, AUSampling(0.5))
    for first in (lambda: next(iter(sampler)), lambda: sampler.pick(torch.arange(4)), lambda: sampler.begin_stream(0)):
        with pytest.raises(ValueError, match=r"ramp is 0\.15.*epochs=30.*ramp=5"):
            first()
    assert len(next(iter(SelectiveBatchSampler(8, 4, AUSampling(1.0))))) == 4  # nothing is drawn


def test_the_epochs_are_given_once():
    with pytest.raises(ValueError, match=r"epochs is 5, but AUSampling has epochs=6.*once"):
        SelectiveBatchSampler(8, 4, AUSampling(epochs=6), epochs=5)
    with pytest.raises(ValueError, match="epochs is 0"):
        SelectiveBatchSampler(8, 4, Random(), epochs=0)
    assert SelectiveBatchSampler(8, 4, AUSampling(epochs=6), epochs=6).policy.epochs == 6
    assert SelectiveBatchSampler(8, 4, Random(), epochs=6).policy == Random()
    assert SelectiveBatchSampler(8, 4, InfoBatch(), epochs=6).policy == InfoBatch(epochs=6)


def test_a_framework_sets_the_epochs_unless_the_user_did():
    sampler = SelectiveBatchSampler(8, 4, AUSampling(0.5))
    assert len(sampler) == 2  # frameworks ask before they train
    for epochs in (40, 20):
        sampler.set_total_epochs(epochs)
        assert sampler.policy.ramp_epochs == 0.15 * epochs
    assert [len(epoch_of(sampler)) for _ in range(2)] == [2, 2]
    given = SelectiveBatchSampler(8, 4, AUSampling(0.5), epochs=100)
    given.set_total_epochs(20)
    assert given.policy.epochs == 100


def test_a_resumed_pass_learns_the_epochs_too():
    whole = SelectiveBatchSampler(16, 4, AUSampling(0.5, full_epochs=0), epochs=20)
    epoch_of(whole)
    batches = iter(whole)
    first = next(batches)
    state = copy.deepcopy(whole.state_dict())
    again = SelectiveBatchSampler(16, 4, AUSampling(0.5, full_epochs=0))
    again.load_state_dict(state)
    again.set_total_epochs(20)
    assert list(again) == [first, *batches]  # the first was not updated, so it is used again


def test_a_stream_uses_the_epochs_of_its_sampler():
    source = [(i, i) for i in range(8)]
    stream = SelectiveStream(source, lambda raw: (float(raw), 0), SelectiveBatchSampler(8, 4, AUSampling()))
    with pytest.raises(ValueError, match="epochs=30"):
        next(iter(stream))
    stream = SelectiveStream(source, lambda raw: (float(raw), 0), SelectiveBatchSampler(8, 4, AUSampling(), epochs=2))
    assert [len(index) for _, _, index in stream] == [4, 4]
