"""Planning: the order, blocks against the whole epoch at once, and batches that are too small."""

import copy
import itertools
import math

import numpy as np
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
from ausam.sampler.current_pass import split_into_batches
from ausam.sampler.permutation import PAIRS, PAIRS_OF_SMALL, SMALL, Permutation
from tests.helpers import feedback, few_of, few_or_many, policy_for, property_test, refused, slow_order

# Fixed seeds make every figure below the same each time. So many standard deviations are exceeded by chance, on one
# side, for one seed in 10,000.
SIGMAS = 3.719


def upper(df):
    """A bound that chi-square of this many degrees of freedom exceeds once in 10,000 seeds (Wilson, Hilferty)."""
    return df * (1 - 2 / (9 * df) + SIGMAS * math.sqrt(2 / (9 * df))) ** 3


def chi_square(counts):
    counts = np.asarray(counts, dtype=float)
    expected = counts.sum() / counts.size
    assert expected >= 5  # or chi-square is no guide
    return float(((counts - expected) ** 2 / expected).sum())


# -- the order ---------------------------------------------------------------------------------------------------------

SIZES = [*range(1, 70), *(2**k + d for k in range(7, 13) for d in (-1, 0, 1)), 1000, 50_000, 65_535, 65_536, 65_537]


def test_every_sample_has_one_place():
    for n in (*SIZES, 100_003):
        order = Permutation(n, generator(3, n))
        assert len(order) == n
        samples = order(0, n)
        assert samples.dtype == torch.int64
        assert torch.equal(samples.sort().values, torch.arange(n)), n


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 12, 53, 255, 256, 257, 1000, 70_001])
def test_the_order_is_the_one_that_is_documented(n):
    assert Permutation(n, generator(1, n))(0, n).tolist() == slow_order(n, generator(1, n))


@property_test(60)
@given(n=st.integers(1, 10**12), seed=st.integers(0, 99), start=st.integers(0, 10**12), width=st.integers(0, 300))
def test_any_part_of_it_can_be_computed_alone(n, seed, start, width):
    n = min(n, 10**9)  # the tables take the root of it
    start %= n
    stop = min(n, start + width)
    order = Permutation(n, generator(seed))
    samples = order(start, stop).tolist()
    assert len(set(samples)) == len(samples) == stop - start
    assert all(0 <= i < n for i in samples)
    assert [int(order(p, p + 1)) for p in range(start, min(start + 3, stop))] == samples[:3]


def test_orders_of_other_keys_differ():
    orders = {
        tuple(Permutation(30, generator(seed, epoch))(0, 30).tolist()) for seed in range(20) for epoch in range(20)
    }
    assert len(orders) == 400


@pytest.mark.parametrize("n", few_of([2, 3, 4, 5], 2, 4))
def test_every_order_of_a_few_is_equally_likely(n):
    draws = 60 * math.factorial(n)
    counts = dict.fromkeys(itertools.permutations(range(n)), 0)
    for seed in range(draws):
        counts[tuple(Permutation(n, generator(seed, 8))(0, n).tolist())] += 1
    assert chi_square(list(counts.values())) < upper(math.factorial(n) - 1)


def test_both_parities_occur_where_the_rounds_alone_reach_one():
    # Of 12 = 4 * 3 every round is an even permutation; only the rotation makes odd ones.
    def odd(order):
        return sum(a > b for a, b in itertools.combinations(order, 2)) % 2

    parities = [odd(Permutation(12, generator(seed))(0, 12).tolist()) for seed in range(400)]
    assert abs(sum(parities) - 200) < SIGMAS * math.sqrt(100)


@pytest.mark.parametrize("n", [12, *few_or_many(1000, 100), *few_or_many(1_000_000, 70_000)])
def test_places_are_uniform(n):
    """Where a sample stands, and which stand at a place: both in ten parts, over many keys."""
    parts, draws = 10, 900
    table = np.zeros((parts, parts))
    watched = np.unique(np.linspace(0, n - 1, 24).astype(int))
    for seed in range(draws):
        order = Permutation(n, generator(seed, n))
        for p in watched[seed % 3 :: 3]:
            table[p * parts // n, int(order(int(p), int(p) + 1)) * parts // n] += 1
    # A part of a small order holds more places than another: compare with what each should have.
    sizes = np.bincount(np.arange(n) * parts // n, minlength=parts) / n
    expected = table.sum(1, keepdims=True) * sizes
    assert expected.min() > 5
    assert float(((table - expected) ** 2 / expected).sum()) < upper(parts * (parts - 1))


@pytest.mark.parametrize("n", [4096, 65_536, 65_537, 100_000, 1_000_000])
@pytest.mark.parametrize("seed", range(3))
def test_neighbours_are_independent(n, seed):
    """Pairs of neighbouring places, and of places a block of the halves apart, over a 20 by 20 grid."""
    samples = Permutation(n, generator(seed, 5))(0, n).numpy()
    grid = 20
    for distance in (1, 2, 3, 2 ** ((n - 1).bit_length() // 2)):
        a, b = samples[:-distance] * grid // n, samples[distance:] * grid // n
        counts = np.bincount(a * grid + b, minlength=grid * grid)
        assert chi_square(counts) < upper(grid * grid - 1), distance
        differences = (samples[distance:] - samples[:-distance]) % n * grid // n
        assert chi_square(np.bincount(differences, minlength=grid)) < upper(grid - 1), distance


@pytest.mark.parametrize("n", [65_537, 1_000_000])
def test_fixed_points_rises_and_low_bits_are_those_of_chance(n):
    samples = Permutation(n, generator(11, n))(0, n).numpy()
    assert (samples == np.arange(n)).sum() <= 8  # Poisson of mean 1: more has probability 1e-6
    rises = int((samples[1:] > samples[:-1]).sum())
    assert abs(rises - (n - 1) / 2) < SIGMAS * math.sqrt((n + 1) / 12)
    # 32 mini-batches of neighbours: how the lowest five bits of what they hold are distributed.
    width = n // 32
    counts = np.stack([np.bincount(samples[i * width : (i + 1) * width] % 32, minlength=32) for i in range(32)])
    assert chi_square(counts) < upper(31 * 31)


def test_fewer_rounds_would_be_seen():
    """The tests above can fail: after one pair of rounds neighbours are far from independent."""
    n, grid = 100_000, 20
    order = Permutation(n, generator(0, 5))
    order._f, order._g = order._f[:1], order._g[:1]
    samples = order(0, n).numpy()
    counts = np.bincount((samples[:-1] * grid // n) * grid + samples[1:] * grid // n, minlength=grid * grid)
    assert chi_square(counts) > 3 * upper(grid * grid - 1)


def test_rounds_are_more_for_small_orders():
    assert (PAIRS, PAIRS_OF_SMALL, SMALL) == (4, 24, 65_536)
    assert [len(Permutation(n, generator(0))._f) for n in (SMALL, SMALL + 1)] == [24, 4]


# -- blocks ------------------------------------------------------------------------------------------------------------

BATCHWISE = [
    Full(),
    Random(0.3),
    AUSampling(0.5, ramp=0),
    AUSampling(0.4, ramp=0, unbiased=True, ema=0.7),
    AUSampling(0.5, ramp=30, full_epochs=0),
    TopLoss(0.5),
    TopLoss(0.4, "sharpness"),
    TopLoss(0.4, "progress"),
    AUSampling(0.5, ramp=0, ema=0.0, trim=0.8, mix=0.3, score="progress"),
    AUSampling(0.5, ramp=0, unbiased=True, score="signed"),
    ClassBalanced(torch.arange(97) ** 2 % 11, 0.4),
    Trusted(torch.arange(97) ** 2 % 11, 0.4, epochs=4),
]
EPOCHWISE = [
    OrderDP(),
    OrderDP(0.5, 0.4),
    InfoBatch(0.5),
    InfoBatch(0.6, on="second"),
    Uncertainty(0.4, 2),
    EpsilonGreedy(0.5, 0.2, period=3),
]


def planned_at_once(policy, scores, epoch, seed, n, size, drop_last, block):
    """Batches of an epoch from a table of its order and the scores as they are, mini-batch by mini-batch."""
    scores.fit = policy.fit(scores, epoch)
    order = torch.tensor(slow_order(n, generator(seed, epoch, 0)))
    size = min(size, n)
    rows = [order[a : a + size] for a in range(0, n, size)]
    if drop_last and len(rows[-1]) < size:
        rows.pop()
    together = max(1, block // size)
    batches, weights = [], {}
    for number in range(0, len(rows), together):
        rng = generator(seed, epoch, 2, number // together)
        some = rows[number : number + together]
        whole = [r for r in some if len(r) == size]
        for candidates in (whole, [r for r in some if len(r) < size]):
            if candidates:
                kept, factor = policy.choose(scores, epoch, torch.stack(candidates), rng)
                for r, (row, k) in enumerate(zip(candidates, kept, strict=True)):
                    batches.append([int(row[j]) for j in k])
                    if factor is not None:
                        weights.update(zip(batches[-1], factor[r].tolist(), strict=True))
    return batches, weights


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("policy", BATCHWISE, ids=repr)
@pytest.mark.parametrize("drop_last", [False, True])
def test_blocks_that_are_planned_when_due_are_those_of_planning_at_once(policy, drop_last):
    n, size, seed = 97, 7, 3  # blocks of two mini-batches, and a last one of six
    sampler = SelectiveBatchSampler(n, size, policy, seed=seed, drop_last=drop_last)
    for epoch in range(4):
        before = copy.deepcopy(sampler.scores)
        expected, weights = planned_at_once(policy, before, epoch, seed, n, size, drop_last, 20)
        assert len(sampler) == len(expected)
        seen = []
        for index in sampler:
            seen.append(index)
            if weights:
                weight = sampler.weight(torch.tensor(index))
                torch.testing.assert_close(weight, torch.tensor([weights[i] for i in index]), rtol=0, atol=0)
            else:
                assert sampler.weight(torch.tensor(index)) is None
            sampler.update(feedback(index, epoch))  # while later blocks are still to be planned
        assert seen == expected
        assert not torch.equal(before.last, sampler.scores.last)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("policy", EPOCHWISE, ids=repr)
def test_what_is_chosen_for_an_epoch_is_handed_out_in_its_order(policy):
    n, size, seed = 97, 7, 3
    sampler = SelectiveBatchSampler(n, size, policy, seed=seed)
    for epoch in range(5):
        announced, batches = len(sampler), []
        for index in sampler:
            batches.append(index)
            sampler.update(feedback(index, epoch))
        used = set(itertools.chain(*batches))
        order = [i for i in slow_order(n, generator(seed, epoch, 0)) if i in used]
        assert batches == [order[a : a + size] for a in range(0, len(order), size)]
        assert announced == len(batches)


@pytest.mark.usefixtures("small_blocks")
def test_a_block_is_planned_when_its_first_batch_is_due():
    asked = []

    class Watched(Random):
        def choose(self, scores, epoch, candidates, rng):
            asked.append(candidates.shape)
            return super().choose(scores, epoch, candidates, rng)

    sampler = SelectiveBatchSampler(50, 10, Watched(0.5))
    assert len(sampler) == 5
    assert asked == []
    batches = iter(sampler)
    for planned in (1, 1, 2, 2, 3):
        next(batches)
        assert len(asked) == planned
    assert asked == [(2, 10), (2, 10), (1, 10)]


@pytest.mark.usefixtures("small_blocks")
def test_what_is_consumed_is_forgotten_and_what_is_not_is_kept():
    sampler = SelectiveBatchSampler(400, 10, Full())
    for index in sampler:
        sampler.update(feedback(index, 0))
        assert len(sampler._pass._blocks) <= 3
    held = list(sampler)  # nothing of this pass is consumed
    assert len(sampler._pass._blocks) >= 20
    for index in held[:7]:
        sampler.update(feedback(index, 1))
    again = SelectiveBatchSampler(400, 10, Full())
    again.load_state_dict(sampler.state_dict())
    assert list(again) == held[7:]


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
@given(full=st.integers(0, 40), kept=st.integers(1, 9), last=st.integers(0, 9), least=st.integers(1, 30))
def test_the_cut_is_the_slow_one(full, kept, last, least):
    last = min(last, kept)
    if not full and not last:
        return
    sizes = [kept] * full + [last] * (last > 0)
    batches = split_into_batches(sum(sizes), kept, least)
    expected = merge_small(sizes, least)
    assert len(batches) == len(expected)
    spans = [batches.span(b) for b in range(len(batches))]
    assert [b - a for a, b in spans] == expected
    if expected:
        assert (spans[0][0], spans[-1][1]) == (0, sum(sizes))
    for world in (1, 2, 3, 5):
        for rank in range(world):
            if least >= world and expected:
                shares = list(itertools.accumulate(len(range(rank, size, world)) for size in expected))
                for used in range(shares[-1] + 3):
                    assert batches.complete(used, rank, world) == sum(s <= used for s in shares)


SHAPES = {
    "n": st.integers(1, 60),
    "size": st.integers(1, 9),
    "alpha": st.sampled_from([0.01, 0.2, 0.5, 1.0]),
    "least": st.integers(1, 5),
    "world": st.integers(1, 4),
    "drop_last": st.booleans(),
    "block": st.sampled_from([1, 16, 1 << 16]),
}


@pytest.mark.filterwarnings("ignore:No score has reached the sampler")
@pytest.mark.parametrize("name", POLICIES)
@property_test(50)
@given(**SHAPES)
def test_no_batch_is_smaller_than_min_batch_and_none_is_lost(name, block, n, size, alpha, least, world, drop_last):
    fields = {"alpha": alpha} if name not in ("Full", "InfoBatch", "OrderDP") else {}
    if n < least or (drop_last and n < size * world):
        return

    def build(size, **more):
        s = SelectiveBatchSampler(n, size, policy_for(name, n, **fields), drop_last=drop_last, **more)
        s._scores.record(torch.arange(n), torch.arange(n).float() + 1)
        s.set_epoch(1)
        return s

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ausam.sampler.plan.BLOCK", block)
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


def test_the_cases_that_fail_in_batchnorm():
    tiny = SelectiveBatchSampler(50, 10, Random(0.01), min_batch=2)
    assert [len(b) for b in tiny] == [2, 3]  # of each mini-batch one, joined in twos; the fifth joins the one before
    short = SelectiveBatchSampler(41, 10, Full(), min_batch=2)
    assert [len(b) for b in short] == [10, 10, 10, 11]
    single = SelectiveBatchSampler(7, 1, Full(), min_batch=2)
    assert [len(b) for b in single] == [2, 2, 3]
    assert (len(tiny), len(short), len(single)) == (2, 4, 3)


def test_a_pass_with_too_few_samples_is_refused():
    sampler = SelectiveBatchSampler(5, 5, Random(0.2), min_batch=2)
    for act in (lambda: len(sampler), lambda: next(iter(sampler))):
        with refused(ValueError, "1 samples for epoch 0", "2 are needed", "min_batch=2", "set_epoch(1)"):
            act()
    assert sampler.epoch == 0
