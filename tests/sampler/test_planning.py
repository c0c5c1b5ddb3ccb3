"""Planning: an epoch against a transcription on plain lists, and batches that are too small."""

import copy
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ausam import (
    POLICIES,
    AUSampling,
    ClassBalanced,
    EpsilonGreedy,
    Full,
    InfoBatch,
    OrderDP,
    Random,
    SelectiveBatchSampler,
    TopLoss,
    Trusted,
    Uncertainty,
)
from ausam.common.random import generator
from ausam.sampler import plan
from ausam.sampler.plan import EpochIterator, Plan
from tests.helpers import feedback, order_of_choice, order_of_epoch, policy_for, property_test, refused

pytestmark = pytest.mark.filterwarnings("ignore:.*sampler.weight was never called")

N, SIZE, SEED = 97, 7, 3

BATCHWISE = [
    Full(),
    Random(0.3),
    AUSampling(0.5, ramp=0),
    AUSampling(0.4, ramp=0, unbiased=True, ema=0.7),
    AUSampling(0.5, ramp=30, full_epochs=0),
    TopLoss(0.4, "progress"),
    AUSampling(0.5, ramp=0, ema=0.0, trim=0.8, mix=0.3, score="progress"),
    ClassBalanced(torch.arange(N) ** 2 % 11, 0.4),
    Trusted(torch.arange(N) ** 2 % 3, 0.4, epochs=4),
]
EPOCHWISE = [OrderDP(0.5, 0.4), InfoBatch(0.6, on="second"), Uncertainty(0.4, 2), EpsilonGreedy(0.5, 0.2, period=3)]


def planned_by_hand(policy, scores, epoch, drop_last):
    """Batches of an epoch from the scores as they are, mini-batch by mini-batch, and the weights of the samples."""
    scores.fit = policy.fit(scores, epoch)
    order = torch.tensor(order_of_epoch(N, SEED, epoch))
    rows = [order[a : a + SIZE] for a in range(0, N, SIZE)]
    if drop_last and len(rows[-1]) < SIZE:
        rows.pop()
    rng, batches, weights = generator(SEED, epoch, 2), [], {}
    for together in (rows[:2], rows[2:4], rows[4:6], rows[6:8], rows[8:10], rows[10:12], rows[12:13], rows[13:]):
        if together:
            kept, factor = policy.choose(scores, epoch, torch.stack(together), rng)
            for r, (row, k) in enumerate(zip(together, kept, strict=True)):
                batches.append([int(row[j]) for j in k])
                if factor is not None:
                    weights.update(zip(batches[-1], factor[r].tolist(), strict=True))
    return batches, weights


@pytest.mark.parametrize("policy", BATCHWISE, ids=repr)
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_epoch_is_chosen_mini_batch_by_mini_batch_from_the_scores_at_its_start(policy, drop_last, monkeypatch):
    monkeypatch.setattr(plan, "CHUNK", 2 * SIZE)
    sampler = SelectiveBatchSampler(N, SIZE, policy, seed=SEED, drop_last=drop_last)
    for epoch in range(4):
        expected, weights = planned_by_hand(policy, copy.deepcopy(sampler.scores), epoch, drop_last)
        assert len(sampler) == len(expected)
        seen = []
        for index in sampler:
            seen.append(index)
            weight = sampler.weight(torch.tensor(index))
            assert (weight is None) == (not weights)
            if weights:
                assert torch.equal(weight, torch.tensor([weights[i] for i in index]))
            sampler.update(feedback(index, epoch))
        assert seen == expected


@pytest.mark.parametrize("policy", EPOCHWISE, ids=repr)
def test_what_is_chosen_for_an_epoch_is_shuffled(policy):
    sampler = SelectiveBatchSampler(N, SIZE, policy, seed=SEED)
    for epoch in range(5):
        announced, batches = len(sampler), []
        for index in sampler:
            batches.append(index)
            sampler.update(feedback(index, epoch))
        used = set(itertools.chain(*batches))
        order = order_of_choice(used, SEED, epoch)
        assert batches == [order[a : a + SIZE] for a in range(0, len(order), SIZE)]
        assert announced == len(batches)


@pytest.mark.filterwarnings("ignore:The first update of this pass")
def test_feedback_on_samples_still_to_come_counts_in_the_next_epoch():
    sampler, other = (SelectiveBatchSampler(N, SIZE, TopLoss(0.5), seed=SEED) for _ in range(2))
    for s in (sampler, other):
        for index in s:
            s.update(feedback(index, 0))
    batches = iter(sampler)
    first = next(batches)
    sampler.update(feedback(range(N), 1))
    assert [first, *batches] == list(other)


def test_the_length_of_an_epoch_is_known_without_choosing():
    class Watched(Uncertainty):
        def choose(self, *arguments):
            raise AssertionError("it was asked to choose")

    sampler = SelectiveBatchSampler(N, SIZE, Watched(0.4))
    sampler.set_epoch(3)
    assert len(sampler) == 6  # 38 of 97 in sevens


# -- batches that are too small ----------------------------------------------------------------------------------------


def merge_small(sizes, least):
    """Sizes after joining: to the next until there are enough, at the end to the one before."""
    larger, now = [], 0
    for size in sizes:
        now += size
        if now >= least:
            larger.append(now)
            now = 0
    if now and larger:
        larger[-1] += now
    return larger


@property_test(300)
@given(full=st.integers(0, 40), kept=st.integers(1, 9), last=st.integers(0, 9), least=st.integers(1, 10))
def test_the_cut_is_the_slow_one(full, kept, last, least):
    sizes = [kept] * full + [min(last, kept)] * (last > 0)
    for world in (1, 2, 3, 5):
        expected = merge_small(sizes, least * world)
        for rank in range(world if expected else 0):
            one = EpochIterator(Plan(0, torch.arange(sum(sizes)), kept), rank, world, least, updated=True)
            shares = [len(batch) for batch in one]
            assert shares == [len(range(rank, size, world)) for size in expected]
            for used in range(sum(shares) + 3):
                one.consumed = used
                rest = one.rest()
                complete = sum(share <= used for share in itertools.accumulate(shares))
                assert (0 if rest is None else len(rest.index)) == sum(expected[complete:])


SHAPES = {
    "n": st.integers(1, 60),
    "size": st.integers(1, 9),
    "alpha": st.sampled_from([0.01, 0.2, 0.5, 1.0]),
    "least": st.integers(1, 5),
    "world": st.integers(1, 4),
    "drop_last": st.booleans(),
}


@pytest.mark.filterwarnings("ignore:No score has reached the sampler", "ignore:.*with batch_size=1")
@pytest.mark.parametrize("name", POLICIES)
@property_test(50)
@given(**SHAPES)
def test_no_batch_is_smaller_than_min_batch_and_none_is_lost(name, n, size, alpha, least, world, drop_last):
    fields = {"alpha": alpha} if name not in ("Full", "InfoBatch", "OrderDP") else {}
    if n < least or (drop_last and n < size * world):
        return

    def build(size, **more):
        s = SelectiveBatchSampler(n, size, policy_for(name, n, **fields), drop_last=drop_last, **more)
        s._scores.record(torch.arange(n), torch.arange(n).float() + 1)
        s.set_epoch(1)
        return s

    whole = list(build(size * world))
    ranks = [build(size, rank=r, world_size=world, min_batch=least) for r in range(world)]
    if sum(map(len, whole)) < least * world:
        with pytest.raises(ValueError, match="are needed: min_batch="):
            len(ranks[0])
        return
    announced = {len(r) for r in ranks}
    parts = [list(r) for r in ranks]
    assert announced == {len(p) for p in parts}
    assert min(len(b) for p in parts for b in p) >= least
    sizes = [sum(map(len, shares)) for shares in zip(*parts, strict=True)]
    assert sizes == merge_small([len(b) for b in whole], least * world)
    assert sorted(itertools.chain(*itertools.chain(*parts))) == sorted(itertools.chain(*whole))
    for shares in zip(*parts, strict=True):
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_an_epoch_with_too_few_samples_is_refused():
    sampler = SelectiveBatchSampler(5, 5, Random(0.2), min_batch=2)
    for act in (lambda: len(sampler), lambda: next(iter(sampler))):
        with refused(ValueError, "1 samples are chosen for epoch 0", "2 are needed", "min_batch=2", "set_epoch"):
            act()
    assert sampler.epoch == 0
