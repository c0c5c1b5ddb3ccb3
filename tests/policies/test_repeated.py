"""Repeated against a transcription on plain lists, and what it promises of every sample."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ausam import AUSampling, Repeated, SelectiveBatchSampler, SelectiveStream
from tests.helpers import order_of_candidates, order_of_choice, property_test, refused


def slow_epoch(n: int, p: int, q: int, epoch: int, seed: int) -> list[int]:
    """The samples of an epoch in their sequence, from a table of the order."""
    turn, j = epoch // q, epoch % q
    order = order_of_candidates(n, seed, turn)
    places = list(range(j * p * n // q, (j + 1) * p * n // q))
    if not places:
        places = [j * p * n // q]
    return order_of_choice([order[place % n] for place in places], seed, epoch)


@pytest.mark.parametrize(
    ("alpha", "p", "q"), [(0.5, 1, 2), (1 / 3, 1, 3), (0.4, 2, 5), (0.75, 3, 4), (0.37, 37, 100), (0.001, 1, 1000)]
)
@pytest.mark.parametrize("batch", ["full", "reduced"])
def test_epochs_are_those_of_the_transcription(alpha, p, q, batch):
    n, seed = 53, 3
    size = 8 if batch == "full" else max(1, int(alpha * 8))
    expected = [slow_epoch(n, p, q, epoch, seed) for epoch in range(2 * min(q, 5))]
    sampler = SelectiveBatchSampler(n, 8, Repeated(alpha, batch), seed=seed)
    for samples in expected:
        assert len(sampler) == -(-len(samples) // size)
        assert list(sampler) == [samples[a : a + size] for a in range(0, len(samples), size)]


@property_test(150)
@given(
    n=st.integers(1, 60), q=st.integers(1, 25), p=st.integers(1, 25), seed=st.integers(0, 99), round_=st.integers(0, 2)
)
def test_every_sample_is_used_p_times_in_q_epochs(n, q, p, seed, round_):
    p = min(p, q)
    alpha = Fraction(p, q)
    p, q = alpha.as_integer_ratio()
    sampler = SelectiveBatchSampler(n, 4, Repeated(float(alpha)), seed=seed)
    sampler.set_epoch(round_ * q)
    used = Counter(dict.fromkeys(range(n), 0))
    for _ in range(q):
        epoch = list(itertools.chain(*sampler))
        assert len(epoch) == len(set(epoch)) >= 1
        assert abs(len(epoch) - float(alpha) * n) < 1
        used.update(epoch)
        if p * n >= q:  # else an epoch has no sample of its own, and takes one
            assert max(used.values()) - min(used.values()) <= 1
    if p * n >= q:
        assert set(used.values()) == {p}


def test_the_part_that_is_kept_is_near_alpha():
    for alpha in (0.123456, 1 / 7, 0.003, 0.5 + 1e-9, 1e-5, 0.999):
        fraction = Repeated(alpha).fraction
        assert 0 < fraction <= 1
        assert abs(float(fraction) - alpha) <= 1 / (100 * fraction.denominator)
        assert Repeated(alpha).kept == float(fraction)
    for q in range(1, 101):  # rounding does not make another fraction of 1 / q
        assert Repeated(1 / q).fraction == Fraction(1, q)


def test_rounds_and_epochs_of_a_round_differ():
    sampler = SelectiveBatchSampler(40, 40, Repeated(0.5), seed=1)
    halves = [frozenset(itertools.chain(*sampler)) for _ in range(20)]
    assert all(a | b == set(range(40)) for a, b in zip(halves[::2], halves[1::2], strict=True))
    assert len(set(halves)) == 20


def test_a_second_lap_meets_other_neighbours():
    sampler = SelectiveBatchSampler(200, 10, Repeated(0.75), seed=1)
    pairs = Counter()
    for _ in range(4):  # three laps of one order
        for batch in sampler:
            pairs.update(frozenset(pair) for pair in itertools.pairwise(batch))
    assert max(pairs.values()) <= 2  # laps in the same sequence would repeat nearly every pair three times
    assert sum(count > 1 for count in pairs.values()) < 20


@pytest.mark.parametrize(("n", "size", "alpha"), [(1000, 128, 0.5), (1000, 128, 0.25), (640, 64, 0.75), (100, 10, 0.4)])
def test_reduced_batches_take_as_many_steps_as_ausampling(n, size, alpha):
    sampler = SelectiveBatchSampler(n, size, Repeated(alpha, "reduced"))
    other = SelectiveBatchSampler(n, size, AUSampling(alpha, ramp=30))
    other.set_epoch(1)
    assert len(sampler) == len(other)
    assert {len(batch) for batch in list(sampler)[:-1]} == {int(alpha * size)}
    full = SelectiveBatchSampler(n, size, Repeated(alpha))
    assert len(full) == -(-int(alpha * n) // size)
    assert {len(batch) for batch in list(full)[:-1]} == {size}


def test_what_is_loaded_already_is_refused():
    sampler = SelectiveBatchSampler(10, 5, Repeated(0.5))
    with refused(ValueError, "Repeated goes through an order of all samples", "use Random(alpha)"):
        sampler.pick(torch.arange(5))
    with refused(ValueError, "Repeated chooses among all samples, but a stream", "e.g. AUSampling"):
        SelectiveStream([(0, 0)], int, sampler)
