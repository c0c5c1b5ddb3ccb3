"""Ranking and flagging: the fit against a slow one, the rule, and what must hold whatever the losses are."""

import math

import numpy as np
import pytest

from ausam.audit import find_label_errors, flag, rank
from ausam.common.groups import fit_groups
from ausam.common.label_errors import tail_limit, unlearned_classes
from tests.helpers import few_or_many


def two(n=1000, share=0.2, seed=0, low=0.05, high=4.0, spread=0.5):
    """Losses in two groups, and which samples are in the upper one."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(n) < share
    return np.where(wrong, high, low) * np.exp(rng.normal(0, spread, n)), wrong


def test_the_fit_equals_a_slow_one_on_the_values_themselves():
    rng = np.random.default_rng(1)
    loss = np.exp(np.concatenate([rng.normal(-3, 0.8, 700), rng.normal(1, 0.3, 300)]))
    groups = fit_groups(loss)
    v, w, m, s = np.log(loss), np.array([0.5, 0.5]), np.array([-2.0, 0.5]), np.array([1.0, 1.0])
    for _ in range(500):
        p = w / s * np.exp(-0.5 * ((v[:, None] - m) / s) ** 2)
        r = p / p.sum(1, keepdims=True)
        w, m = r.mean(0), (r * v[:, None]).sum(0) / r.sum(0)
        s = np.sqrt((r * (v[:, None] - m) ** 2).sum(0) / r.sum(0))
    assert groups.share == pytest.approx(w, abs=0.005)
    assert groups.mean == pytest.approx(m, abs=0.02)
    assert groups.deviation == pytest.approx(s, abs=0.02)
    density = w / s * np.exp(-0.5 * ((math.log(groups.crossing) - m) / s) ** 2)
    assert density[0] == pytest.approx(density[1], rel=0.05)


def test_every_sample_has_a_rank_whatever_the_outcome():
    loss = np.array([0.1, math.nan, 3.0, 0.2])
    assert rank(loss).tolist() == [2, 3, 0, 1]
    errors = flag(loss)
    assert (len(errors), errors.outcome, errors.order.tolist()) == (0, "not apart", [2, 3, 0, 1])
    assert flag(np.full(30, math.nan)).outcome == "unseen"
    assert flag(two(low=1.9, high=6.0)[0]).outcome == "not learned"
    assert sorted(flag(two()[0]).order) == list(range(1000))
    assert len(flag(two()[0], [0, 1] * 500)) == len(flag(two()[0])) > 0  # labels as a list


def slow_decision(loss):
    """The rule on the losses themselves: which are flagged by two groups, or by three if two do not lie apart."""
    x = np.log(np.maximum(loss, 1e-4))
    for cuts in ([(0.5,), (0.8,), (0.95,), (0.99,), (0.995,)], [(0.5, 0.8), (0.5, 0.9), (0.6, 0.95), (0.7, 0.99)]):
        fits = [slow_fit(x, np.quantile(x, cut)) for cut in cuts]
        likelihood, w, m, s = max(fits, key=lambda fit: fit[0])
        one = sum(-0.5 * math.log(2 * math.pi * x.var()) - 0.5 * (v - x.mean()) ** 2 / x.var() for v in x)
        gain = 2 * (likelihood - one) - 3 * (len(w) - 1) * math.log(len(x))
        distance = math.sqrt(2) * (m[-1] - m[-2]) / math.hypot(s[-1], s[-2])
        if gain > 10 and distance > 2 and m[-2] < math.log(math.log(2)) < m[-1] - 2 * s[-1]:
            density = w / s * np.exp(-0.5 * ((x[:, None] - m) / s) ** 2)
            high = x[(x > m[-2]) & (density[:, -1] > density[:, :-1].sum(1))].min()
            return x >= max(high, math.log(math.log(2)))
    return np.zeros(len(x), bool)


def slow_fit(x, cuts):
    group = (x[:, None] > cuts).sum(1)
    r = np.where(group[:, None] == np.arange(len(cuts) + 1), 0.95, 0.05)
    for _ in range(300):
        w, m = r.mean(0), (r * x[:, None]).sum(0) / r.sum(0)
        s = np.maximum(np.sqrt((r * (x[:, None] - m) ** 2).sum(0) / r.sum(0)), 0.05 * x.std())
        density = w / s * np.exp(-0.5 * ((x[:, None] - m) / s) ** 2) / math.sqrt(2 * math.pi)
        r = density / density.sum(1, keepdims=True)
    order = np.argsort(m)
    return np.log(density.sum(1)).sum(), w[order], m[order], s[order]


@pytest.mark.parametrize("seed", range(6))
def test_the_decision_is_that_of_a_slow_transcription(seed):
    """Few wrong labels, many, and hard samples between the easy and the wrong ones."""
    rng = np.random.default_rng(seed)
    loss, _ = two(600, share=(0.03, 0.3)[seed % 2], seed=seed)
    if seed > 3:
        loss[:120] = np.exp(rng.normal(-1.2, 0.4, 120))
    errors, expected = flag(loss), slow_decision(loss)
    assert expected.any()
    assert (errors.flagged != expected).sum() <= 2  # at the limit, where a bin of the histogram has both


def test_hard_samples_between_the_easy_and_the_wrong_ones_are_not_flagged():
    rng = np.random.default_rng(0)
    of = np.repeat([0, 1, 2], [600, 300, 100])
    loss = np.exp(rng.normal(np.log([0.03, 0.25, 3.0])[of], np.array([0.5, 0.6, 0.2])[of]))
    errors = flag(loss)
    assert (of[errors.index] == 2).mean() > 0.95
    assert errors.flagged[of == 2].mean() > 0.95
    hard = loss * np.where(of == 2, 0.3, 1.0)  # the third group is the end of the second
    assert len(flag(hard)) == 0


def calibrated(n=20_000, share=0.0, temperature=1.0, seed=0):
    """Margin losses of a calibrated network, which errs with odds exp(-margin), and which labels are wrong."""
    rng = np.random.default_rng(seed)
    margin = rng.gamma(2.0, 2.0, n)
    errs = rng.random(n) < 1 / (1 + np.exp(margin / temperature))
    wrong = rng.random(n) < share
    return np.logaddexp(0, np.where(errs != wrong, margin, -margin)), wrong


def slow_tail(loss):
    """The rule, window by window and sample by sample."""
    margin = [math.log(math.expm1(min(max(v, 1e-4), math.log(1e4)))) for v in loss]
    against, confirmed = sorted(a for a in margin if a > 0), [-a for a in margin if a <= 0]
    step = max(10, len(against) // 64)
    edges = [0.0, *against[len(against) % step :: step]]

    def found(low, high):
        return sum(low <= a < high for a in against), sum(math.exp(-a) for a in confirmed if low <= a < high)

    for i in range(1, len(edges)):
        above, weight = found(edges[i], math.inf)
        windows = [found(low, edges[i]) for low in edges[:i]]
        ratios = [(n + 2 * math.sqrt(n + 1)) / w for n, w in windows if w > 0]
        if ratios and min(ratios) * weight <= 0.1 * (above - 2 * math.sqrt(above)):
            return math.log1p(math.exp(edges[i]))
    return math.inf


@pytest.mark.parametrize("share", [0.0, 0.002, 0.02, 0.3])
def test_the_tail_is_that_of_a_slow_transcription(share):
    loss, _ = calibrated(3000, share)
    assert tail_limit(loss) == pytest.approx(slow_tail(loss))


@pytest.mark.parametrize(("share", "least"), [(0.01, 0.1), (0.02, 0.1), (0.05, 0.3)])
def test_few_wrong_labels_among_hard_samples_are_flagged(share, least):
    """The groups overlap: the network errs on as many right labels as there are wrong ones."""
    loss, wrong = calibrated(share=share)
    errors = flag(loss)
    assert len(flag(loss, tail=False)) == 0
    assert wrong[errors.index].mean() > 0.85
    assert errors.flagged[wrong].mean() > least


@pytest.mark.parametrize("temperature", [0.5, 0.8, 1.0])
def test_what_a_network_finds_hard_is_not_flagged(temperature):
    """Less sure of itself than it could be, and calibrated."""
    assert sum(len(flag(calibrated(temperature=temperature, seed=seed)[0])) for seed in range(5)) == 0


@pytest.mark.parametrize("share", [0.005, 0.01, 0.02, 0.4])
def test_few_and_many_wrong_labels_are_flagged(share):
    loss, wrong = two(4000, share, spread=0.4)
    errors = flag(loss)
    assert wrong[errors.index].mean() > 0.9
    assert errors.flagged[wrong].mean() > 0.9


def test_the_order_of_the_samples_does_not_matter():
    loss, _ = two()
    shuffled = np.random.default_rng(5).permutation(len(loss))
    one, other = flag(loss), flag(loss[shuffled])
    assert (one.flagged[shuffled] == other.flagged).all()
    assert one.distance == other.distance


def test_a_class_that_is_not_learned_is_never_flagged():
    loss, wrong = two()
    labels = np.arange(1000) % 5
    loss[labels == 2] = 4.0
    errors = flag(loss, labels)
    assert errors.unlearned.tolist() == [2]
    assert set(errors.index) == set(np.flatnonzero(wrong & (labels != 2)))
    many = np.array([0.1] * 10 + [3.0] * 6 + [0.1] * 4 + [3.0] * 4)
    assert unlearned_classes(many, 1.0, np.array([0] * 10 + [1] * 10 + [2] * 4)).tolist() == [1, 2]


@pytest.mark.parametrize("losses", [[], [0.5] * 100, [math.nan] * 50, [0.0] * 30, list(np.linspace(0.1, 1, 19))])
def test_nothing_to_split(losses):
    assert fit_groups(np.array(losses, float)) is None
    assert len(flag(np.array(losses, float))) == 0


@pytest.mark.parametrize("problems", few_or_many(50, 200))
def test_one_skewed_group_is_not_two(problems):
    false = 0
    for seed in range(problems):
        rng = np.random.default_rng(seed)
        loss = np.exp(rng.normal(rng.uniform(-5, -1), rng.uniform(0.3, 2.0), rng.integers(100, 3000)))
        false += len(flag(loss, tail=False)) > 0
    assert false <= problems / 100


# -- arrays of any library ---------------------------------------------------------------------------------------------


def predictions(n=300, classes=5, share=0.1, seed=0):
    """Labels, which of them are wrong, and logits that prefer the right class."""
    rng = np.random.default_rng(seed)
    right = rng.integers(0, classes, n)
    wrong = rng.random(n) < share
    logits = rng.normal(0, 0.5, (n, classes))
    logits[np.arange(n), right] += 5
    return np.where(wrong, (right + 1) % classes, right), wrong, right, logits


def test_predictions_flag_and_say_the_likely_class():
    labels, wrong, right, logits = predictions()
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    by_logits, by_probabilities = find_label_errors(labels, logits=logits), find_label_errors(labels, probabilities=p)
    for errors in (by_logits, by_probabilities):
        assert set(errors.index) == set(np.flatnonzero(wrong))
        assert (errors.likely[wrong] == right[wrong]).all()
    assert by_logits.loss == pytest.approx(by_probabilities.loss, rel=1e-4)
    losses = -np.log(p[np.arange(300), labels])
    assert set(find_label_errors(labels, losses=losses).index) == set(np.flatnonzero(wrong))


def memorising(n=400, epochs=32, seed=0):
    """Losses of a network that learns right labels by epoch 4 and memorises the wrong ones by epoch 16."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(n) < 0.2
    at = np.arange(epochs)[:, None]
    learned = np.where(wrong, at >= 16, at >= 4)
    return np.where(learned, 0.02, 3.0) * np.exp(rng.normal(0, 0.4, (epochs, n))), wrong


def test_labels_that_are_memorised_in_the_end_are_found_in_a_log_of_losses():
    losses, wrong = memorising()
    labels = np.arange(400) % 4
    assert len(flag(losses[-1])) == 0
    assert set(find_label_errors(labels, losses=losses).index) == set(np.flatnonzero(wrong))
    losses[:, 7] = math.nan
    losses[::2, 9] = math.nan
    errors = find_label_errors(labels, losses=losses)
    assert errors.order[-1] == 7
    assert errors.flagged[9] == wrong[9]


def test_a_network_that_diverges_flags_nobody():
    rng = np.random.default_rng(0)
    log = rng.lognormal(-4, 0.5, (10, 400))
    log[:, :60] = rng.lognormal(2, 0.3, (10, 60))
    labels = np.arange(400) % 4
    assert len(find_label_errors(labels, losses=log)) == 60
    log[:, :60] *= 1e6
    assert len(errors := find_label_errors(labels, losses=log)) == 0
    assert sorted(errors.order[:60].tolist()) == list(range(60))


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({}, "exactly one"),
        ({"losses": np.ones(4), "logits": np.ones((4, 2))}, "exactly one"),
        ({"losses": np.ones(3)}, "4 labels"),
        ({"logits": np.ones(4)}, "samples, classes"),
        ({"logits": np.ones((4, 2))}, "labels go up to 3"),
        ({"probabilities": np.full((4, 4), -1.0)}, "logits="),
    ],
)
def test_arrays_that_do_not_fit_are_refused(given, remedy):
    with pytest.raises((TypeError, ValueError), match=remedy):
        find_label_errors(np.arange(4), **given)
