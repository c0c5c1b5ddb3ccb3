"""Trusted: the odds against a slow transcription, what it protects, and that a pass is drawn from one fit."""

import math

import numpy as np
import pytest
import torch

from ausam import Feedback, Random, SelectiveBatchSampler, SelectiveStream, Trusted
from ausam.audit import flag

LOG2 = math.log(2)


def losses(n=600, share=0.2, classes=4, seed=0):
    """Labels, which of them are wrong, and losses in which the wrong ones stand out."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    wrong = rng.random(n) < share
    loss = np.where(wrong, 3.0, 0.05) * np.exp(rng.normal(0, 0.5, n))
    return labels, wrong, loss.astype(np.float32)


def visit(sampler, loss):
    """One epoch in which each sample has its loss."""
    for chosen in sampler:
        i = torch.tensor(chosen)
        sampler.update(Feedback(i, torch.from_numpy(loss)[i], torch.from_numpy(loss)[i]))


def slow_trust(a, labels, classes, doubt):
    """The rule, sample by sample."""
    limit = flag(a).limit
    unlearnt = []
    for c in range(classes):
        mine = [a[i] for i in range(len(a)) if labels[i] == c and not math.isnan(a[i])]
        if limit < math.inf and (len(mine) < 5 or sum(x > limit for x in mine) > len(mine) / 2):
            unlearnt.append(c)
    suspected = [x > limit and labels[i] not in unlearnt for i, x in enumerate(a)]
    trusted = [min(x, LOG2) for x, s in zip(a, suspected, strict=True) if not s and not math.isnan(x)]
    mean, level = sum(trusted) / len(trusted), 0.05 * math.log(classes)
    odds = []
    for x, s in zip(a, suspected, strict=True):
        q = mean if math.isnan(x) else min(x, LOG2)
        odds.append(doubt if s else (q + level) / (mean + level))
    return odds


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_the_odds_are_those_of_a_slow_transcription(share):
    labels, _, loss = losses(share=share)
    policy = Trusted(labels, epochs=12, alpha=0.5)
    sampler = SelectiveBatchSampler(len(labels), batch_size=50, policy=policy)
    for _ in range(8):
        visit(sampler, loss)
    next(iter(sampler))
    assert sampler.scores.fit
    every = torch.arange(len(labels))
    odds = policy.odds(sampler.scores, every)
    a = np.where(sampler.scores.count.numpy() >= 2, sampler.scores.mean.double().numpy(), math.nan)
    assert odds.tolist() == pytest.approx(slow_trust(a, labels, 4, 0.1), rel=1e-4)


@pytest.mark.filterwarnings("ignore:No score has reached the sampler")
def test_before_the_start_the_draw_is_that_of_random():
    labels, _, loss = losses()
    mine = SelectiveBatchSampler(600, batch_size=50, policy=Trusted(labels, epochs=8), seed=3)
    twin = SelectiveBatchSampler(600, batch_size=50, policy=Random(0.5), seed=3)
    for _ in range(2):
        first, second = list(mine), list(twin)
        assert first == second
    for _ in range(8):
        visit(mine, loss)
        list(twin)
    assert list(mine) != list(twin)


def test_wrong_labels_are_drawn_a_tenth_as_often_and_flagged():
    labels, wrong, loss = losses()
    sampler = SelectiveBatchSampler(600, batch_size=100, policy=Trusted(labels, epochs=4, alpha=0.3), seed=1)
    drawn = np.zeros(600)
    for epoch in range(30):
        for chosen in sampler:
            i = torch.tensor(chosen)
            sampler.update(Feedback(i, torch.from_numpy(loss)[i], torch.from_numpy(loss)[i]))
            drawn[chosen] += epoch >= 10
    assert drawn[wrong].mean() < 0.25 * drawn[~wrong].mean()
    errors = sampler.label_errors()
    assert set(errors.index) == set(np.flatnonzero(wrong))


def feed(sampler, outputs, labels):
    """One epoch of these outputs."""
    loss = torch.nn.functional.cross_entropy(outputs, torch.as_tensor(labels), reduction="none")
    for chosen in sampler:
        i = torch.tensor(chosen)
        sampler.update(Feedback(i, loss[i], loss[i], outputs[i]))


def test_it_judges_by_the_margin_and_not_by_how_unsure_the_network_is():
    """Among many classes an unsure network has a large loss for labels that it prefers to any other."""
    labels, n = np.arange(600) % 100, 600
    z = torch.zeros(n, 100)
    z[torch.arange(n), torch.from_numpy(labels)] = 3.0
    z += 0.1 * torch.randn(n, 100, generator=torch.Generator().manual_seed(0))
    sampler = SelectiveBatchSampler(n, batch_size=60, policy=Trusted(labels, alpha=0.5, start=1))
    for _ in range(4):
        feed(sampler, z, labels)
    seen = sampler.scores.count.numpy() > 0
    assert np.nanmax(sampler.scores.mean.numpy()[seen]) < math.log(2) < 1.5
    assert len(sampler.label_errors()) == 0


def test_if_the_groups_are_not_apart_the_draw_is_that_of_random():
    labels, _, loss = losses(share=0.0)
    mine = SelectiveBatchSampler(600, batch_size=50, policy=Trusted(labels, start=1), seed=3)
    twin = SelectiveBatchSampler(600, batch_size=50, policy=Random(0.5), seed=3)
    for _ in range(6):
        visit(mine, loss)
    for _ in range(6):
        list(twin)
    assert list(mine) == list(twin)
    assert mine.label_errors().outcome == "not apart"


def test_a_sample_is_demoted_only_once_it_was_visited_twice_and_each_visited_one_is_ranked():
    labels, wrong, loss = losses()
    sampler = SelectiveBatchSampler(600, batch_size=50, policy=Trusted(labels, alpha=0.3, start=2), seed=1)
    for _ in range(6):
        visit(sampler, loss)
    count, errors = sampler.scores.count.numpy(), sampler.label_errors()
    assert len(errors)
    assert (count[errors.index] >= 2).all()
    seen = errors.order[: (count > 0).sum()]
    assert set(seen) == set(np.flatnonzero(count > 0))
    assert wrong[seen[: wrong[seen].sum()]].all()
    assert (count[wrong & (count > 0)] >= 1).mean() > 0.9


def test_a_class_that_is_not_learnt_is_never_suspected():
    labels, wrong, loss = losses()
    loss[labels == 2] = 4.0
    sampler = SelectiveBatchSampler(600, batch_size=50, policy=Trusted(labels, epochs=4), seed=1)
    for _ in range(6):
        visit(sampler, loss)
    named = set(sampler.label_errors().index)
    seen = sampler.scores.count.numpy() >= 2
    assert named == set(np.flatnonzero(wrong & seen & (labels != 2)))
    every = torch.arange(600)
    next(iter(sampler))
    assert sampler.policy.odds(sampler.scores, every)[labels == 2].min() == pytest.approx(1, abs=1e-6)


def test_a_stream_and_pick_decide_too():
    labels, wrong, loss = losses()
    sampler = SelectiveBatchSampler(600, batch_size=100, policy=Trusted(labels, epochs=1, alpha=0.4), seed=2)
    for _ in range(8):
        visit(sampler, loss)
    stream = SelectiveStream([(i, i) for i in range(600)], lambda raw: float(raw), sampler)
    list(stream)  # its first epoch is drawn at random
    seen = np.concatenate([np.asarray(batch[-1]) for batch in stream])
    assert wrong[seen].mean() < 0.5 * wrong.mean()
    sampler.set_epoch(12)
    kept = torch.cat([i[sampler.pick(i)] for i in torch.arange(600).split(100)])
    assert wrong[kept.numpy()].mean() < 0.5 * wrong.mean()


def test_without_labels_only_losses_worse_than_chance_are_flagged():
    _, _, loss = losses()
    policy = Trusted(None, epochs=4, chance_loss=math.log(4))
    sampler = SelectiveBatchSampler(600, batch_size=50, policy=policy)
    for _ in range(6):
        visit(sampler, loss)
    errors = sampler.label_errors()
    assert len(errors)
    assert (sampler.scores.mean[errors.index] > math.log(4)).all()


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({"labels": None}, "chance_loss="),
        ({"labels": [0.5, 1.5]}, "whole number"),
        ({"labels": [0, 1], "doubt": 0}, "doubt"),
        ({"labels": [0, 1], "start": 1.5}, "start"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments, remedy):
    with pytest.raises((TypeError, ValueError), match=remedy):
        Trusted(**{"epochs": 4, **arguments})


def test_a_start_is_a_fraction_of_the_epochs_or_a_number_of_them():
    decides = [
        next(e for e in range(30) if Trusted([0, 1], start=s, epochs=n).decides(e)) for s, n in ((0.25, 30), (3, None))
    ]
    assert decides == [8, 3]
    sampler = SelectiveBatchSampler(2, batch_size=2, policy=Trusted([0, 1]))
    with pytest.raises(ValueError, match=r"start is 0\.25.*epochs=30"):
        list(sampler)


def test_labels_of_another_dataset_are_refused():
    sampler = SelectiveBatchSampler(5, batch_size=2, policy=Trusted([0, 1], epochs=4))
    with pytest.raises(ValueError, match="2 labels"):
        list(sampler)


def test_label_errors_of_another_policy_are_refused_with_the_remedy():
    with pytest.raises(TypeError, match="Trusted"):
        SelectiveBatchSampler(10, batch_size=2, policy=Random(0.5)).label_errors()
