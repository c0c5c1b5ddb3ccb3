"""Weighted: draws by weights that the user sets, with and without replacement, over ranks, resumed."""

import datetime
import itertools
import math
import os
from collections import Counter

import pytest
import torch
import torch.distributed as dist

from ausam import Feedback, SelectiveBatchSampler, TopLoss, Weighted
from ausam.policies.contrib import weighted
from tests.helpers import few_or_many, refused
from tests.processes import group

N = 12
WEIGHTS = torch.tensor([0.0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0])


def sampler_of(policy, weights=WEIGHTS, size=4, **more):
    sampler = SelectiveBatchSampler(len(weights), size, policy, **more)
    sampler.scores.set(torch.arange(len(weights)), weights)
    return sampler


def within(count, draws, p):
    """Six standard deviations of a binomial distribution."""
    return abs(count - draws * p) <= 6 * math.sqrt(draws * p * (1 - p)) + 1e-9


def test_draws_with_replacement_are_in_proportion_to_the_weights():
    sampler = sampler_of(Weighted(length=30_000), size=1000)
    counts = Counter(i for batch in sampler for i in batch)
    assert sum(counts.values()) == 30_000
    assert counts[0] == counts[11] == 0
    for i, p in enumerate((WEIGHTS / WEIGHTS.sum()).tolist()):
        assert within(counts[i], 30_000, p), i


@pytest.mark.parametrize("part", [1, 3, 5, 12])
def test_draws_are_the_same_whatever_is_summed_at_a_time(part, monkeypatch):
    weights = torch.tensor([0.0, 0, 0, 0, 2, 0, 0, 0, 5, 1, 0, 0])
    expected = next(iter(sampler_of(Weighted(length=300), weights, size=300)))
    assert set(expected) == {4, 8, 9}
    monkeypatch.setattr(weighted, "PART", part)
    assert next(iter(sampler_of(Weighted(length=300), weights, size=300))) == expected


@pytest.mark.parametrize("draws", few_or_many(400, 4000))
def test_draws_without_replacement_are_sequential(draws):
    """Two of three: P({i, j}) = p_i p_j / (1 - p_i) + p_j p_i / (1 - p_j)."""
    p = [1 / 6, 2 / 6, 3 / 6]
    sampler = sampler_of(Weighted(length=2, replacement=False), torch.tensor([1.0, 2, 3]), size=2)
    counts = Counter(frozenset(next(iter(sampler))) for _ in range(draws))
    for i, j in itertools.combinations(range(3), 2):
        expected = p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j])
        assert within(counts[frozenset((i, j))], draws, expected), (i, j)


def test_weights_that_change_count_from_the_next_epoch_on():
    sampler = sampler_of(Weighted(length=40))
    epoch = iter(sampler)
    first = next(epoch)
    sampler.scores.set(torch.arange(N), torch.eye(N)[3])
    rest = [i for batch in epoch for i in batch]
    assert set(first + rest) != {3}
    assert {i for batch in sampler for i in batch} == {3}
    sampler.scores.set([5], [1.0])
    assert {i for batch in sampler for i in batch} == {3, 5}


def test_samples_without_a_weight_have_the_mean_of_the_others():
    sampler = SelectiveBatchSampler(4, 100, Weighted(length=20_000), seed=1)
    equal = Counter(i for batch in sampler for i in batch)
    assert all(within(equal[i], 20_000, 1 / 4) for i in range(4))
    sampler.scores.set([0, 1], [3.0, 1.0])  # the mean is 2
    counts = Counter(i for batch in sampler for i in batch)
    for i, p in enumerate((3 / 8, 1 / 8, 2 / 8, 2 / 8)):
        assert within(counts[i], 20_000, p), i


@pytest.mark.parametrize("replacement", [True, False])
def test_updates_count_what_was_consumed_and_leave_the_weights(replacement):
    sampler = sampler_of(Weighted(alpha=0.5, replacement=replacement), size=2)
    for index in map(torch.tensor, sampler):
        sampler.update(Feedback(index, torch.rand(len(index)), torch.rand(len(index))))
    assert torch.equal(sampler.scores.mean, WEIGHTS)
    assert sampler.state_dict()["plan"] is None


def set_and_draw(rank, folder):
    """Each process sets the weights of half of the samples; the plan is that of one process."""
    drawn = {}
    for policy in (Weighted(length=30), Weighted(alpha=0.7, replacement=False)):
        sampler = SelectiveBatchSampler(N, 2, policy, seed=4)
        mine = torch.arange(rank, N, 2)
        sampler.scores.set(mine, WEIGHTS[mine])
        unchanged = bool(sampler.scores.mean.isnan().all())
        epochs = [list(sampler)]
        batches = []
        for k, batch in enumerate(sampler):
            batches.append(batch)
            sampler.update(Feedback(torch.tensor(batch), torch.ones(len(batch)), torch.ones(len(batch))))
            if k == 0:
                sampler.scores.set([rank], [50.0 + rank])
                sampler.exchange()
                if rank == 0:
                    torch.save(sampler.state_dict(), f"{folder}/state.pt")
                dist.barrier()
        again = SelectiveBatchSampler(N, 2, policy)
        again.load_state_dict(torch.load(f"{folder}/state.pt"))
        dist.barrier()
        epochs += [batches, list(sampler)]
        resumed = [list(again), list(again)]
        drawn[str(policy)] = unchanged, epochs, resumed, sampler.scores.mean
    return drawn


def process(folder):
    rank, limit = int(os.environ["RANK"]), datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=limit)
    torch.save(set_and_draw(rank, folder), f"{folder}/{rank}.pt")


@pytest.mark.nightly
def test_two_processes_draw_what_one_would_and_resume(tmp_path):
    assert group(2, process, tmp_path, seconds=120) == [0, 0]
    ranks = [torch.load(f"{tmp_path}/{rank}.pt") for rank in range(2)]
    for policy in (Weighted(length=30), Weighted(alpha=0.7, replacement=False)):
        one = sampler_of(policy, seed=4)
        expected = [list(one)]
        epoch = iter(one)
        middle = [next(epoch)]
        one.scores.set([0, 1], [50.0, 51.0])
        expected += [middle + list(epoch), list(one)]
        (_, a, a_again, a_scores), (_, b, b_again, b_scores) = (r[str(policy)] for r in ranks)
        assert all(r[str(policy)][0] for r in ranks)  # nothing changes before the exchange
        for k in range(3):
            assert [sorted(x + y) for x, y in zip(a[k], b[k], strict=True)] == [sorted(x) for x in expected[k]]
        assert a_again == [a[1][1:], a[2]]
        assert b_again == [b[1][1:], b[2]]
        assert torch.equal(a_scores, b_scores)
        assert a_scores[:2].tolist() == [50.0, 51.0]


def test_a_signal_of_ones_own_sets_the_weights():
    def squared(feedback):
        return feedback.loss**2

    sampler = SelectiveBatchSampler(N, 5, Weighted(length=20, signal=squared))
    for index in map(torch.tensor, sampler):  # a sample may occur twice in a batch: the later value counts
        sampler.update(Feedback(index, index.float(), index.float()))
    seen = sampler.scores.count > 0
    assert torch.equal(sampler.scores.mean[seen], torch.arange(N).float()[seen] ** 2)
    assert int(sampler.scores.count.sum()) == 20


def test_what_weighted_refuses():
    with refused(ValueError, "alpha is 2", "replacement=True"):
        Weighted(alpha=2, replacement=False)
    with refused(ValueError, "length is 5", "alpha is 0.5", "one of them"):
        Weighted(alpha=0.5, length=5)
    with refused(ValueError, "signal is 'grand'", "a function of a Feedback"):
        Weighted(signal="grand")
    with refused(TypeError, "replacement is 1", "True or False"):
        Weighted(replacement=1)
    with refused(ValueError, "2 of 3", "1 have a weight above 0", "smaller length, replacement=True"):
        list(sampler_of(Weighted(length=2, replacement=False), torch.tensor([0.0, 1, 0])))
    with refused(ValueError, "All weights are 0", "at least one"):
        list(sampler_of(Weighted(), torch.zeros(3)))
    with refused(ValueError, "sample 1 is -1", "sampler.scores.set", ">= 0"):
        list(sampler_of(Weighted(), torch.tensor([1.0, -1, 0])))
    forgotten = SelectiveBatchSampler(3, 2, Weighted(signal="forgetting"))
    z = torch.eye(3)
    forgotten.update(Feedback(torch.arange(3), torch.full((3,), 9.0), torch.zeros(3), z))  # all are wrong
    with refused(ValueError, "is inf", "the signal forgetting", "finite"):
        list(forgotten)


def test_scores_set_by_hand():
    sampler = SelectiveBatchSampler(5, 2, TopLoss(0.4))
    sampler.scores.set([4, 1], [2.0, 7.0])
    assert sampler.scores.mean.isnan().tolist() == [True, False, True, True, False]
    assert sampler.scores.last[[4, 1]].tolist() == [2.0, 7.0]
    with refused(ValueError, "2 indices", "1 values"):
        sampler.scores.set([1, 2], [1.0])
    with refused(ValueError, "index 5 is outside"):
        sampler.scores.set([5], [1.0])
    with refused(ValueError, "sample 2 is not finite"):
        sampler.scores.set([1, 2], [1.0, math.nan])
    with refused(ValueError, "index 1 occurs twice"):
        sampler.scores.set([1, 1], [1.0, 2.0])
    assert sampler.scores.mean[[4, 1]].tolist() == [2.0, 7.0]
