"""Suspects, rare and redundant samples, and the verdict, on tables whose answer is known."""

import math

import numpy as np
import pytest
import torch

from ausam import Feedback
from ausam.audit import Audit
from ausam.common.mixture import two_groups
from ausam.common.trust import groups_apart, unlearnt_classes


def trained(clean, wrong, n=400, share=0.2, visits=10, classes=10, seed=0):
    """An audit in which a share of the samples has losses around ``wrong`` and the others around ``clean``."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    bad = rng.random(n) < share
    audit = Audit(n, labels)
    for _ in range(visits):
        level = np.where(bad, wrong, clean)
        loss = torch.tensor(level * np.exp(rng.normal(0, 0.4, n)), dtype=torch.float32)
        audit.update(Feedback(torch.arange(n), loss, loss, outputs_of(loss, labels, classes)))
    return audit, bad, labels


def outputs_of(loss, labels, classes):
    """Outputs with these cross-entropies, in which the next class has the rest of the probability."""
    z = torch.full((len(loss), classes), -30.0)
    every, label = torch.arange(len(loss)), torch.as_tensor(labels)
    z[every, label] = -loss
    z[every, (label + 1) % classes] = torch.log(-torch.expm1(-loss))
    return z


def test_flipped_labels_are_found_with_their_likely_class():
    audit, bad, labels = trained(clean=0.05, wrong=4.0)
    suspects = audit.suspects()
    assert set(suspects.index) == set(np.flatnonzero(bad))
    assert (suspects.suggested == (labels[suspects.index] + 1) % 10).all()
    assert suspects.rate == pytest.approx(bad.mean(), abs=0.005)
    assert suspects.interval[0] < bad.mean() < suspects.interval[1]
    assert (suspects.probability > 0.5).all()
    assert sum(wrong for _, _, wrong in suspects.by_class) == bad.sum()
    assert audit.verdict().kind == "wrong labels"


def test_the_interval_is_of_the_rate_that_is_reported():
    """Classes that are not learnt yet are not suspected: neither in the rate nor in its interval."""
    _, bad, labels = trained(clean=0.05, wrong=4.0, n=1000, visits=1)
    unlearnt = labels < 3
    level = np.where(bad | unlearnt, 4.0, 0.05)
    audit = fitted_to(Audit(1000, labels), torch.tensor(level, dtype=torch.float32))
    suspects = audit.suspects()
    assert set(suspects.index) == set(np.flatnonzero(bad & ~unlearnt))
    assert suspects.interval[0] < suspects.rate < suspects.interval[1]
    assert suspects.interval[1] - suspects.interval[0] < 0.1


def fitted_to(audit, loss, outputs=None, visits=8):
    for seed in range(visits):
        noise = torch.exp(0.3 * torch.randn(len(audit), generator=torch.Generator().manual_seed(seed)))
        audit.update(Feedback(torch.arange(len(audit)), loss * noise, loss * noise, outputs))
    return audit


def test_without_labels_the_losses_alone_name_the_suspects():
    bad = torch.arange(200) % 10 == 0
    z = torch.nn.functional.one_hot(torch.arange(200) % 4, 4).float()
    audit = fitted_to(Audit(200), torch.where(bad, 4.0, 0.05), z)
    suspects = audit.suspects()
    assert audit.classes == 4
    assert sorted(suspects.index) == bad.nonzero().flatten().tolist()
    assert (suspects.suggested == suspects.index % 4).all()  # the class that the network prefers, whatever the label
    assert suspects.by_class == ()
    assert audit.verdict().kind == "wrong labels"
    assert len(audit.rare().classes) == 0
    assert audit.redundant().share == pytest.approx(0.9)


def test_with_several_labels_per_sample_the_loss_of_guessing_is_given():
    bad = torch.arange(200) % 10 == 0
    audit = fitted_to(Audit(200, guess=math.log(2)), torch.where(bad, 2.0, 0.02), torch.randn(200, 7))
    suspects = audit.suspects()
    assert audit.guessing() == math.log(2)
    assert audit.classes is None
    assert sorted(suspects.index) == bad.nonzero().flatten().tolist()
    assert (suspects.suggested == -1).all()  # the outputs are not one class per sample
    assert fitted_to(Audit(200, guess=math.log(2)), torch.full((200,), 0.6)).verdict().kind == "unfitted"
    with pytest.raises(ValueError, match="guess"):
        Audit(3, [0, 1, 2], guess=1.0)
    with pytest.raises((TypeError, ValueError), match="guess"):
        Audit(3, guess=0.0)


@pytest.mark.parametrize("visits", [9, 10])
def test_after_few_visits_the_verdict_warns_of_hard_samples(visits):
    said = str(trained(clean=0.05, wrong=4.0, visits=visits)[0].verdict())
    assert ("After 9 visits of a sample, hard ones are among them" in said) == (visits == 9)


def test_a_short_training_is_not_judged():
    assert fitted_to(Audit(50, classes=10), torch.full((50,), 0.1), visits=3).verdict().kind == "too short"


def test_an_audit_without_feedback_says_so():
    verdict = Audit(50, classes=10).verdict()
    assert verdict.kind == "too short"
    assert "call audit.update" in str(verdict)


def test_memorised_labels_are_found_by_the_mean_of_the_whole_training():
    audit, bad, _ = trained(clean=0.05, wrong=4.0, visits=40)
    for _ in range(40):  # then everything is known by heart
        flat = torch.full((len(audit),), 0.01)
        audit.update(Feedback(torch.arange(len(audit)), flat, flat))
    assert set(audit.suspects().index) == set(np.flatnonzero(bad))


def test_labels_known_by_heart_but_for_a_few_are_found_by_the_mean_too():
    """The few that still resist are not all: the mean over the training knows the others."""
    labels, bad = np.arange(400) // 5 % 10, torch.arange(400) % 5 == 0
    audit = Audit(400, labels)
    for epoch in range(20):
        rng = torch.Generator().manual_seed(epoch)
        learnt = ~bad | torch.tensor(epoch >= 12) & (torch.arange(400) % 50 != 0)
        loss = torch.where(learnt, 0.05, 4.0) * torch.exp(0.4 * torch.randn(400, generator=rng))
        audit.update(Feedback(torch.arange(400), loss, loss, outputs_of(loss, labels, 10)))
    assert set(audit.suspects().index) == set(bad.nonzero().flatten().tolist())


def test_labels_that_may_be_known_by_heart_are_not_called_redundant():
    """A network that agrees with every label in the end says nothing about those that it learnt late."""
    labels, late = np.arange(400) % 2, torch.arange(400) % 5 == 0
    audit = Audit(400, labels)
    for epoch in range(10):
        loss = torch.where(late & torch.tensor(epoch < 7), 0.9, 0.05)
        audit.update(Feedback(torch.arange(400), loss, loss, outputs_of(loss, labels, 2)))
    assert audit.redundant().share > 0.7
    verdict = audit.verdict()
    assert (verdict.kind, verdict.pair) == ("by heart", "")
    assert "still ranks them" in str(verdict)
    ranked = audit.suspects().loss
    assert np.array_equal(ranked, audit.table()["mean"])
    assert ranked[late.numpy()].min() > ranked[~late.numpy()].max()


def test_every_sample_that_was_seen_often_is_ranked_and_suspects_come_first():
    wrong = trained(clean=0.05, wrong=4.0)[0].suspects()
    assert len(wrong.index)
    assert (np.diff(wrong.loss[wrong.index]) <= 0).all()
    assert wrong.loss[wrong.index].min() > np.delete(wrong.loss, wrong.index).max()
    seldom = fitted_to(Audit(30, classes=10), torch.full((30,), 0.1), visits=2)
    assert np.isnan(seldom.suspects().loss).all()


def test_what_trusted_does_already_is_not_suggested():
    noisy, clean = trained(clean=0.05, wrong=4.0)[0], trained(clean=0.05, wrong=0.05)[0]
    for audit, kind in ((noisy, "wrong labels"), (clean, "redundant")):
        verdict = audit.verdict(trusted=True)
        assert (verdict.kind, verdict.pair) == (kind, "")
        assert "less often already" in str(verdict)
        assert "Trusted" in audit.verdict().pair


def test_samples_that_were_seldom_seen_are_said_not_to_be_judged():
    audit, bad, labels = trained(clean=0.05, wrong=4.0)
    more = Audit(450, np.r_[labels, np.zeros(50, int)])
    more.load_state_dict(padded(audit, 50))
    loss = torch.full((50,), 4.0)
    more.update(Feedback(torch.arange(400, 450), loss, loss, outputs_of(loss, np.zeros(50, int), 10)))
    assert set(more.suspects().index) == set(np.flatnonzero(bad))
    assert "11 % of the samples were seen fewer than 3 times" in str(more.verdict())
    assert "seen fewer" not in str(audit.verdict())


def padded(audit, n):
    """The state of an audit of ``n`` samples more, which were never visited."""
    state, none = audit.state_dict(), Audit(n).state_dict()
    return state | {name: torch.cat([state[name], none[name]]) for name in ("rows", "touched")}


@pytest.mark.parametrize("seed", range(5))
def test_clean_data_have_no_suspects(seed):
    audit, _, _ = trained(clean=0.05, wrong=0.05, seed=seed)
    assert len(audit.suspects().index) == 0
    assert audit.verdict().kind == "redundant"


def test_an_unlearnt_class_is_not_suspected():
    audit, _, labels = trained(clean=0.05, wrong=0.05)
    rare = torch.tensor(np.flatnonzero(labels == 3))
    for _ in range(60):
        audit.update(Feedback(rare, torch.full((len(rare),), 4.0), torch.full((len(rare),), 4.0)))
    assert not np.isin(audit.suspects().index, rare.numpy()).any()
    assert np.isin(rare.numpy(), audit.rare().index).all()


def test_an_unfitted_model_is_told_to_train_longer():
    audit, _, _ = trained(clean=1.6, wrong=2.4)
    verdict = audit.verdict()
    assert verdict.kind == "unfitted"
    assert "smaller batches" in str(verdict)
    assert len(audit.suspects().index) == 0


def test_many_wrong_labels_are_not_taken_for_a_model_that_has_not_fitted_the_data():
    rng, labels, bad = np.random.default_rng(0), np.arange(1000) // 100, np.arange(1000) % 100 < 48
    audit = Audit(1000, labels)
    for _ in range(10):
        level = np.where(bad, 4.0, 0.6) * np.exp(rng.normal(0, 0.4, 1000))
        loss = torch.tensor(level, dtype=torch.float32)
        audit.update(Feedback(torch.arange(1000), loss, loss, outputs_of(loss, labels, 10)))
    assert np.median(audit.table()["last"]) > math.log(10) / 2
    assert audit.suspects().rate == pytest.approx(0.48, abs=0.02)
    assert audit.verdict().kind == "wrong labels"


def test_redundant_samples_were_learnt_at_once():
    audit = Audit(10, np.zeros(10, int), classes=10)
    for step in range(10):
        loss = torch.full((10,), 0.1)
        loss[5:] = 2.0 if step % 2 else 0.1  # half of them are forgotten again and again
        audit.update(Feedback(torch.arange(10), loss, loss))
    easy = audit.redundant()
    assert sorted(easy.index) == [0, 1, 2, 3, 4]
    assert (easy.share, easy.alpha) == (0.5, 0.55)
    assert sorted(audit.rare().index) == [5, 6, 7, 8, 9]


def test_the_fit_equals_a_slow_one_on_the_values_themselves():
    rng = np.random.default_rng(1)
    loss = np.exp(np.concatenate([rng.normal(-3, 0.8, 700), rng.normal(1, 0.3, 300)]))
    groups = two_groups(loss)
    v, w, m, s = np.log(loss), np.array([0.5, 0.5]), np.array([-2.0, 0.5]), np.array([1.0, 1.0])
    for _ in range(500):
        p = w / s * np.exp(-0.5 * ((v[:, None] - m) / s) ** 2)
        r = p / p.sum(1, keepdims=True)
        w, m = r.mean(0), (r * v[:, None]).sum(0) / r.sum(0)
        s = np.sqrt((r * (v[:, None] - m) ** 2).sum(0) / r.sum(0))
    assert groups.share == pytest.approx(w, abs=0.005)
    assert groups.mean == pytest.approx(m, abs=0.02)
    assert groups.deviation == pytest.approx(s, abs=0.02)
    posterior = groups.posterior(np.array([1e-3, groups.crossing, 10.0, math.nan]))
    assert posterior[0] < 0.01
    assert posterior[1] == pytest.approx(0.5, abs=0.01)
    assert posterior[2] > 0.99
    assert math.isnan(posterior[3])


@pytest.mark.parametrize("losses", [[], [0.5] * 100, [math.nan] * 50, [0.0] * 30, list(np.linspace(0.1, 1, 19))])
def test_nothing_to_split(losses):
    assert two_groups(np.array(losses, float)) is None
    assert groups_apart(np.array(losses, float), math.log(10)) is None


def test_one_skewed_group_is_not_two():
    false = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        loss = np.exp(rng.normal(rng.uniform(-5, -1), rng.uniform(0.3, 2.0), rng.integers(100, 3000)))
        false += groups_apart(loss, math.log(10)) is not None
    assert false <= 2  # one per cent


def test_classes_that_are_not_learnt():
    loss = np.array([0.1] * 10 + [3.0] * 6 + [0.1] * 4 + [3.0] * 4)
    labels = np.array([0] * 10 + [1] * 10 + [2] * 4)
    assert unlearnt_classes(loss, 1.0, labels).tolist() == [1, 2]
