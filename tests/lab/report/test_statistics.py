"""Rows and differences against literal transcriptions of their formulas."""

import math
import statistics as plain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ausam_lab.config import Config
from ausam_lab.records.comparison import Difference
from ausam_lab.report.statistics import (
    BETTER,
    UNCLEAR,
    UNFINISHED,
    WORSE,
    holm,
    interval,
    p_text,
    paired,
    rows,
    standing,
)
from tests.lab.helpers import HARDWARE, a_comparison, named

T_975 = {2: 12.7062, 3: 4.30265, 5: 2.77645, 9: 2.30600}  # Student's t by the number of seeds, from a printed table


def row(*scores):
    return a_comparison(named("x", *scores)).rows[0]


@pytest.mark.parametrize("n", T_975)
def test_few_seeds_have_the_interval_of_a_paired_t_test(n):
    a, b = [90.0 + 0.37 * i**1.3 for i in range(n)], [89.5 + 0.21 * i for i in range(n)]
    difference = paired(row(*a), row(*b))
    d = [x - y for x, y in zip(a, b, strict=True)]
    half = T_975[n] * plain.stdev(d) / math.sqrt(n)
    assert (difference.n, difference.mean) == (n, pytest.approx(plain.fmean(d)))
    assert (difference.low, difference.high) == pytest.approx(
        (difference.mean - half, difference.mean + half), rel=1e-4
    )
    assert (difference.p <= 0.05) == (difference.low > 0 or difference.high < 0)


def test_p_of_three_seeds_by_hand():
    # t = mean / (s / sqrt 3); with two degrees of freedom the tail is 1/2 - t / (2 sqrt(t^2 + 2))
    difference = paired(row(91.0, 91.1, 91.2), row(90.6, 90.5, 90.4))
    t = 0.6 / (0.2 / math.sqrt(3))
    assert difference.p == pytest.approx(2 * (0.5 - t / (2 * math.sqrt(t * t + 2))))


def test_seeds_are_paired_by_their_number_not_by_their_place():
    a, b = row(10.0, 20.0, 30.0), row(9.0, 19.5, 28.0)
    shuffled = type(b)(**{**vars(b), "seeds": (2, 0, 1), "scores": (28.0, 9.0, 19.5)})
    assert paired(a, shuffled) == paired(a, b)
    other = type(b)(**{**vars(b), "seeds": (2, 7, 8)})
    assert paired(a, other) == Difference(1, 30.0 - 9.0)
    assert paired(a, type(b)(**{**vars(b), "seeds": (7, 8, 9)})) is None


def test_a_single_seed_and_differences_without_spread_decide_nothing():
    for difference in (paired(row(91.0), row(90.0)), paired(row(91.0, 92.0), row(90.0, 91.0))):
        assert (difference.mean, difference.low, difference.high, difference.p, difference.clear) == (
            1.0,
            None,
            None,
            None,
            None,
        )


def test_holm_by_hand():
    corrected = holm([Difference(3, 1.0, p=p) for p in (0.04, 0.01, 0.03)] + [None, Difference(1, 1.0)])
    # 0.01 * 3; then 0.03 * 2; then 0.04, which may not be below the 0.06 of a smaller one
    assert [d and d.p for d in corrected] == [pytest.approx(0.06), pytest.approx(0.03), pytest.approx(0.06), None, None]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_p_and_keeps_its_order(values):
    corrected = [d.p for d in holm([Difference(3, 1.0, p=p) for p in values])]
    assert all(p <= q <= 1 for p, q in zip(values, corrected, strict=True))
    order = sorted(range(len(values)), key=values.__getitem__)
    assert [corrected[i] for i in order] == sorted(corrected)
    assert min(corrected) == min(1.0, min(values) * len(values))


def test_rows_against_hand_computation():
    runs = [
        *named("sgd", 80.0, 84.0, seconds=5.0, samples_forward=1000, samples_backward=1000),
        *named("sam", 90.0, 91.0, seconds=10.0),
        *named("ausam-0.5", 90.0, 90.4, 93.0, seconds=6.0, samples_forward=1000, samples_backward=1200),
    ]
    labels = [("sgd", "SGD"), ("sam", "SAM"), ("ausam-0.5", "A"), ("gsam", "G")]
    sgd, sam, ausam = rows(labels, runs)
    assert (sgd.name, sgd.label, sgd.n) == ("sgd", "SGD", 2)
    assert (sgd.mean, sgd.std) == (82.0, pytest.approx(math.sqrt(8)))
    assert sgd.speed_of_sam == 200.0
    assert (sam.speed_of_sam, sam.against_sam) == (100.0, None)
    assert ausam.n == 3  # three seeds in its mean, but the two that SAM has in its ratios and differences
    assert ausam.speed_of_sam == pytest.approx(100 * 20 / 12)
    assert (ausam.against_sam.n, ausam.against_sam.mean) == (2, pytest.approx(-0.3))
    # Holm over the two rows beside SAM
    alone = [paired(sgd, sam), paired(ausam, sam)]
    assert [sgd.against_sam, ausam.against_sam] == holm(alone)
    assert sgd.against_sam.p == min(1.0, 2 * alone[0].p)
    assert rows([("sgd", "SGD")], runs)[0].speed_of_sam is None
    assert rows([("sgd", "SGD")], runs)[0].against_sam is None


def test_speed_is_of_one_machine_and_one_precision():
    slow = type(HARDWARE)(**{**vars(HARDWARE), "cpu": "another"})
    sam = named("sam", 90.0, 91.0, seconds=10.0)
    elsewhere = named("sgd", 80.0, 81.0, seconds=5.0, hardware=slow)
    quantised = named("sgd", 80.0, 81.0, seconds=5.0, config=Config(quantize=4))
    labels = [("sgd", "SGD"), ("sam", "SAM")]
    assert rows(labels, sam + elsewhere)[0].speed_of_sam is None
    first = rows(labels, sam + quantised)[0]
    assert first.speed_of_sam is None


def test_parts_are_means_of_what_every_run_has():
    runs = named("sam", 70.0, parts={"head": 70.0, "knee": 1.0}) + named("sam", 72.0, parts={"head": 72.0})
    assert rows([("sam", "SAM")], runs)[0].parts == {"head": 71.0}


def test_how_a_row_stands():
    cases = {
        UNFINISHED: [None],
        BETTER: [Difference(3, 0.5, 0.1, 0.9, 0.05)],
        WORSE: [Difference(3, -0.5, -0.9, -0.1, 0.01)],
        # one seed, and several seeds whose differences are equal, have no p
        UNCLEAR: [Difference(1, 0.5), Difference(3, 0.5), Difference(3, 8.0, -0.1, 16.1, 0.08)],
    }
    for expected, differences in cases.items():
        for difference in differences:
            assert standing(difference) == expected


def test_the_figures_behind_it():
    assert interval(Difference(3, -0.5, -0.9, -0.1, 0.01)) == "−0.50 [−0.90, −0.10]*"
    assert interval(Difference(2, 0.5)) == "+0.50"
    assert interval(None) == p_text(None) == p_text(Difference(2, 0.5)) == "–"
    assert p_text(Difference(3, 0.5, 0.1, 0.9, 1e-9)) == "0.001"
