"""The audit of a training: what it flags, when it judges, and its verdict."""

import math

import numpy as np
import pytest
import torch
import torch.distributed as dist

from ausam.audit import Audit
from tests.helpers import Elsewhere
from tests.processes import group


def trained(clean, wrong, n=400, share=0.2, visits=10, classes=10, seed=0):
    """An audit in which a share of the samples has losses around ``wrong`` and the others around ``clean``."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    bad = rng.random(n) < share
    audit = Audit(n, labels)
    for _ in range(visits):
        feed(audit, np.where(bad, wrong, clean) * np.exp(rng.normal(0, 0.4, n)))
    return audit, bad, labels


def feed(audit, loss, index=None):
    """One visit each, with outputs in which the next class has the rest of the probability."""
    index = torch.arange(len(audit)) if index is None else torch.as_tensor(index)
    loss = torch.as_tensor(loss, dtype=torch.float32)
    audit.update(index, loss, outputs_of(loss, audit.labels[index.numpy()], audit.classes))


def outputs_of(loss, labels, classes):
    z = torch.full((len(loss), classes), -30.0)
    every, label = torch.arange(len(loss)), torch.as_tensor(labels)
    z[every, label] = -loss
    z[every, (label + 1) % classes] = torch.log(-torch.expm1(-loss))
    return z


def test_flipped_labels_are_found_with_their_likely_class():
    audit, bad, labels = trained(clean=0.05, wrong=4.0)
    errors = audit.label_errors()
    assert set(errors.index) == set(np.flatnonzero(bad))
    assert (errors.likely[errors.index] == (labels[errors.index] + 1) % 10).all()
    assert audit.verdict().kind == "wrong labels"
    assert errors.order[: len(errors)].tolist() == errors.index.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_clean_data_have_no_flags(seed):
    audit, _, _ = trained(clean=0.05, wrong=0.05, seed=seed)
    assert (len(audit.label_errors()), audit.verdict().kind) == (0, "redundant")


def test_labels_that_are_memorised_are_judged_at_the_epoch_where_they_stood_apart():
    audit, bad, labels = trained(clean=0.05, wrong=4.0, visits=12)
    then = audit.label_errors()
    for _ in range(60):  # the wrong class is memorised, and another one becomes the runner-up
        loss = torch.full((400,), 0.01)
        audit.update(
            torch.arange(400),
            loss,
            outputs_of(loss, labels, 10).roll(1, 1).scatter(1, torch.as_tensor(labels)[:, None], 9.0),
        )
    errors = audit.label_errors()
    assert set(errors.index) == set(np.flatnonzero(bad))
    assert (errors.likely[errors.index] == then.likely[errors.index]).all()
    assert errors.distance >= then.distance
    assert audit.table()["margin"].max() < 0.1


def test_no_call_at_the_end_of_an_epoch_is_needed():
    """Batches that do not divide the data, and more of them than wait for the table."""
    bad = np.arange(300) % 6 == 0
    audit = Audit(300, np.arange(300) // 6 % 10)
    for epoch in range(40):
        order = np.random.default_rng(epoch).permutation(300)
        level = np.where(bad & (epoch < 15), 4.0, 0.05)
        for part in np.array_split(order, 43):
            feed(audit, level[part], part)
    assert set(audit.label_errors().index) == set(np.flatnonzero(bad))


def test_reading_changes_nothing():
    read, not_read = (trained(clean=0.05, wrong=4.0, visits=4)[0] for _ in range(2))
    for audit in (read, not_read):
        for epoch in range(9):
            feed(audit, np.full(137, 2.0 if epoch % 2 else 0.1), np.arange(137))
            if audit is read:
                audit.label_errors(), audit.table(), audit.verdict()
    for name, column in read.state_dict().items():
        np.testing.assert_array_equal(column, not_read.state_dict()[name])


def test_the_order_of_feeding_does_not_matter():
    one, other = Audit(200, np.arange(200) % 4), Audit(200, np.arange(200) % 4)
    for epoch in range(9):
        loss = np.where(np.arange(200) % 5 == 0, 3.0, 0.1) * np.exp(np.random.default_rng(epoch).normal(0, 0.5, 200))
        feed(one, loss)
        for part in np.random.default_rng(epoch).permutation(200).reshape(8, 25):
            feed(other, loss[part], part)
    for name, column in one.table().items():
        np.testing.assert_allclose(column, other.table()[name], rtol=1e-6)


def test_without_labels_the_losses_alone_decide():
    bad = np.arange(200) % 10 == 0
    audit = Audit(200)
    z = torch.nn.functional.one_hot(torch.arange(200) % 4, 4).float()
    for seed in range(8):
        noise = np.exp(np.random.default_rng(seed).normal(0, 0.3, 200))
        audit.update(torch.arange(200), torch.tensor(np.where(bad, 4.0, 0.05) * noise).float(), z)
    errors = audit.label_errors()
    assert audit.classes == 4
    assert set(errors.index) == set(np.flatnonzero(bad))
    assert (errors.likely == np.arange(200) % 4).all()  # the class that the network prefers, whatever the label
    assert audit.verdict().kind == "wrong labels"
    assert audit.redundant().share == pytest.approx(0.9)


def test_with_several_labels_per_sample_the_chance_level_is_given():
    audit = Audit(200, chance_loss=math.log(2))
    for _ in range(8):
        audit.update(torch.arange(200), torch.full((200,), 0.6), torch.randn(200, 7))
    assert audit.chance_loss() == math.log(2)
    assert audit.classes is None
    assert (audit.label_errors().likely == -1).all()  # the outputs are not one class per sample
    assert audit.verdict().kind == "unfitted"
    with pytest.raises(ValueError, match="chance_loss"):
        Audit(3, [0, 1, 2], chance_loss=1.0)
    with pytest.raises((TypeError, ValueError), match="chance_loss"):
        Audit(3, chance_loss=0.0)


def test_a_class_that_is_not_learned_is_not_flagged():
    audit, _, labels = trained(clean=0.05, wrong=0.05)
    rare = np.flatnonzero(labels == 3)
    for _ in range(60):
        feed(audit, np.full(len(rare), 4.0), rare)
    assert not np.isin(audit.label_errors().index, rare).any()


def test_many_wrong_labels_are_no_underfitting_and_underfitting_does_not_hide_the_ranking():
    rng, labels, bad = np.random.default_rng(0), np.arange(1000) // 100, np.arange(1000) % 100 < 48
    audit = Audit(1000, labels)
    for _ in range(10):
        feed(audit, np.where(bad, 4.0, 0.3) * np.exp(rng.normal(0, 0.4, 1000)))
    assert set(audit.label_errors().index) == set(np.flatnonzero(bad))
    assert audit.verdict().kind == "wrong labels"
    hard, bad, _ = trained(clean=1.6, wrong=2.4)
    errors = hard.label_errors()
    assert hard.verdict().kind == "unfitted"
    assert bad[errors.order[: bad.sum()]].mean() > 0.8
    assert "learning rate" in str(trained(clean=30.0, wrong=40.0)[0].verdict())


def test_samples_that_are_seldom_seen_are_ranked_and_not_flagged():
    audit, bad, _ = trained(clean=0.05, wrong=4.0, n=400)
    seldom = Audit(450, np.r_[audit.labels, np.zeros(50, int)])
    for visit in range(10):
        rng = np.random.default_rng(visit)
        feed(seldom, np.where(bad, 4.0, 0.05) * np.exp(rng.normal(0, 0.4, 400)), np.arange(400))
    feed(seldom, np.full(30, 9.0), np.arange(400, 430))
    errors = seldom.label_errors()
    assert set(errors.index) == set(np.flatnonzero(bad))
    assert set(errors.order[:30]) == set(range(400, 430))
    assert set(errors.order[-20:]) == set(range(430, 450))


def test_redundant_samples_were_learned_early_and_never_forgotten():
    audit = Audit(10, np.zeros(10, int), classes=10)
    for step in range(10):
        loss = torch.full((10,), 0.1)
        loss[5:] = 2.0 if step % 2 else 0.1  # half of them are forgotten again and again
        audit.update(torch.arange(10), loss)
    easy = audit.redundant()
    assert sorted(easy.index) == [0, 1, 2, 3, 4]
    assert (easy.share, easy.alpha) == (0.5, 0.55)


@pytest.mark.parametrize(("visits", "kind"), [(0, "unseen"), (3, "too short"), (4, "redundant")])
def test_a_training_that_was_too_short_says_so(visits, kind):
    audit = Audit(50, classes=10)
    for _ in range(visits):
        audit.update(torch.arange(50), torch.full((50,), 0.1))
    assert audit.verdict().kind == kind


def memorising_epoch(epoch, n=300):
    """A permutation of the samples and their losses: a sixth are wrong, and memorised from epoch 9 on."""
    rng = np.random.default_rng(epoch)
    wrong = np.arange(n) % 6 == 0
    level = np.where(np.where(wrong, epoch >= 9, epoch >= 2), 0.05, 4.0)
    return rng.permutation(n), level * np.exp(rng.normal(0, 0.4, n))


def audit_in_part(folder):
    dist.init_process_group("gloo")
    audit = Audit(300, np.arange(300) // 6 % 5)
    for epoch in range(20):
        order, loss = memorising_epoch(epoch)
        for part in np.array_split(order, 10)[dist.get_rank() :: 2]:
            feed(audit, loss[part], part)
        audit.exchange()
    torch.save(audit.state_dict(), f"{folder}/{dist.get_rank()}.pt")


def test_two_processes_have_the_audit_of_one(tmp_path):
    assert group(2, audit_in_part, str(tmp_path)) == [0, 0]
    alone = Audit(300, np.arange(300) // 6 % 5)
    for epoch in range(20):
        order, loss = memorising_epoch(epoch)
        for part in np.array_split(order, 10):
            feed(alone, loss[part], part)
    assert set(alone.label_errors().index) == set(range(0, 300, 6))
    for rank in range(2):
        shared = Audit(300, np.arange(300) // 6 % 5)
        shared.load_state_dict(torch.load(tmp_path / f"{rank}.pt", weights_only=True))
        for name, column in shared.table().items():
            np.testing.assert_array_equal(column, alone.table()[name], err_msg=name)


class OnDevice(Elsewhere):
    """Whose values are read late."""

    device = torch.device("meta")


def test_an_index_outside_that_is_read_late_loses_nothing_else():
    audit = Audit(8, chance_loss=1.0)
    for index in ([0, 1], [2, 9], [3]):
        audit.update(torch.tensor(index).as_subclass(OnDevice), torch.ones(len(index)))
    with pytest.raises(ValueError, match="index 9"):
        audit.table()
    assert audit.table()["visits"].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
