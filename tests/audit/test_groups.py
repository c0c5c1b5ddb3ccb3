"""The two groups of an audit: the fit against a slow transcription, and what is not taken for two groups."""

import math

import numpy as np
import pytest

from ausam.audit.groups import GAIN, fit, two_groups
from ausam.common.mixture import histogram
from ausam.common.trust import EVEN
from tests.helpers import few_or_many


def mixed(n=1500, share=0.2, shape=0.9, scale=0.3, mean=2.5, deviation=0.8, seed=0):
    """Losses of right labels, of which some are hard, and of wrong ones; and which are wrong."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(n) < share
    return np.where(wrong, np.abs(rng.normal(mean, deviation, n)), scale * rng.weibull(shape, n)), wrong


def slow_shape(x, weight):
    """The shape at which the derivative of the log-likelihood is 0, by bisection."""

    def slope(k):
        top = sum(w * v**k * math.log(v) for v, w in zip(x, weight, strict=True))
        bottom = sum(w * v**k for v, w in zip(x, weight, strict=True))
        return top / bottom - 1 / k - sum(w * math.log(v) for v, w in zip(x, weight, strict=True)) / sum(weight)

    low, high = 0.05, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return low


def slow_fit(x, rounds=60):
    """Expectation maximisation on the losses themselves, one by one."""
    cut = sorted(x)[int(0.8 * len(x))]
    r = [0.95 if v > cut else 0.05 for v in x]
    for _ in range(rounds):
        share = sum(r) / len(x)
        mean = sum(a * v for a, v in zip(r, x, strict=True)) / sum(r)
        deviation = math.sqrt(sum(a * (v - mean) ** 2 for a, v in zip(r, x, strict=True)) / sum(r))
        rest = [1 - a for a in r]
        k = slow_shape(x, rest)
        scale = (sum(w * v**k for v, w in zip(x, rest, strict=True)) / sum(rest)) ** (1 / k)
        lower = [(1 - share) * k / scale * (v / scale) ** (k - 1) * math.exp(-((v / scale) ** k)) for v in x]
        normal = share / deviation / math.sqrt(2 * math.pi)
        upper = [normal * math.exp(-0.5 * ((v - mean) / deviation) ** 2) for v in x]
        r = [b / (a + b) for a, b in zip(lower, upper, strict=True)]
    likelihood = sum(math.log(a + b) for a, b in zip(lower, upper, strict=True))
    k = slow_shape(x, [1.0] * len(x))
    scale = (sum(v**k for v in x) / len(x)) ** (1 / k)
    one = sum(math.log(k / scale) + (k - 1) * math.log(v / scale) - (v / scale) ** k for v in x)
    return k, (share, mean, deviation), 2 * (likelihood - one) - 3 * math.log(len(x)), r


def test_the_fit_equals_a_slow_one_on_the_losses_themselves():
    loss, _ = mixed(n=400)
    loss = np.maximum(loss, 1e-3)
    groups = two_groups(loss)
    _, upper, gain, chances = slow_fit(loss.tolist())
    assert (groups.share, groups.mean, groups.deviation) == pytest.approx(upper, rel=0.03)
    assert groups.gain == pytest.approx(gain, rel=0.03)
    above = loss > groups.lower
    rising = np.maximum.accumulate(np.array(chances)[above][np.argsort(loss[above])])
    assert groups.posterior(np.sort(loss[above])) == pytest.approx(rising, abs=0.03)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("shape", [0.7, 1.5])
def test_wrong_labels_beside_hard_samples_are_found(share, shape):
    loss, wrong = mixed(4000, share, shape, mean=4.0, deviation=1.0)
    groups = two_groups(loss)
    assert groups.are_apart()
    suspected = loss > max(EVEN, groups.crossing)
    assert suspected.mean() == pytest.approx(share, abs=0.03)
    assert wrong[suspected].mean() > 0.8


@pytest.mark.parametrize("problems", few_or_many(20, 200))
def test_clean_losses_of_one_group_are_seldom_split(problems):
    """Losses that pile up at 0 or not, with a longer or shorter tail of hard samples."""
    alarms = 0
    for seed in range(problems):
        rng = np.random.default_rng(seed)
        n, shape, scale = int(rng.integers(100, 3000)), rng.uniform(0.3, 2.0), rng.uniform(0.05, 0.6)
        loss = scale * (rng.weibull(shape, n) if seed % 2 else rng.gamma(shape, 1.0, n))
        groups = two_groups(loss)
        limit = max(EVEN, groups.crossing) if groups.are_apart() else math.inf
        alarms += (loss > limit).mean() > 0.01
    assert alarms <= problems / 100


def test_what_is_asked_of_two_groups():
    """A gain for every sample of the upper group, a lower group that is learnt, and an upper one that is not."""
    groups = two_groups(mixed()[0])
    assert groups.are_apart()
    assert not groups.are_apart(gain=groups.gain / groups.share / groups.count)
    assert not groups.are_apart(even=groups.lower)
    assert not groups.are_apart(even=groups.mean)
    assert groups.gain > GAIN * groups.share * groups.count


def test_losses_that_nearly_all_pile_up_at_zero_have_a_tail_and_no_second_group():
    loss, _ = mixed(share=0.03, shape=0.35, scale=0.01)
    groups = two_groups(loss)
    assert groups.gain > 10
    assert groups.shape < 0.5
    assert not groups.are_apart()


def test_the_posterior_never_falls_and_knows_what_is_missing():
    groups = two_groups(mixed()[0])
    at = np.r_[0.0, np.geomspace(1e-4, 60, 500)]
    posterior = groups.posterior(at)
    assert (np.diff(posterior) >= 0).all()
    assert posterior[0] == 0
    assert posterior[-1] > 0.99
    assert groups.posterior(np.array([groups.crossing]))[0] == pytest.approx(0.5, abs=0.01)
    assert np.isnan(groups.posterior(np.array([math.nan, 1.0]))).tolist() == [True, False]


def test_a_start_leads_to_the_same_groups():
    loss, _ = mixed()
    groups = two_groups(loss)
    again = fit(*histogram(loss), groups)
    assert (again.share, again.mean) == pytest.approx((groups.share, groups.mean), rel=1e-3)


@pytest.mark.parametrize("losses", [[], [0.5] * 100, [math.nan] * 50, [0.0] * 30, list(np.linspace(0.1, 1, 19))])
def test_nothing_to_split(losses):
    assert two_groups(np.array(losses, float)) is None


def test_two_values_are_two_groups():
    groups = two_groups(np.array([0.01] * 90 + [4.0] * 10))
    assert groups.are_apart()
    assert groups.share == pytest.approx(0.1, abs=0.01)
