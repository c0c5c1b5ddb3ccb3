"""The audit's table against a slow transcription, sample by sample."""

import itertools
import math

import numpy as np
import pytest
import torch

from ausam import Feedback
from ausam.audit import Audit
from ausam.audit.table import DECAY, ROW
from tests.helpers import moved


def slow(losses, differences, outputs, label):
    """One sample's row from the lists of its visits."""
    predicted = [z.index(max(z)) for z in outputs]
    rivals = [math.log(1 + math.exp(max(o for c, o in enumerate(z) if c != label) - z[label])) for z in outputs]
    right = [p == label for p in predicted]
    learnt = next((i + 1 for i in range(len(right)) if all(right[i:])), 0)
    guess, votes = 0, 0
    for p in predicted:
        if votes == 0:
            guess, votes = p, 1
        else:
            votes += 1 if p == guess else -1
    weights = [DECAY ** (len(losses) - 1 - i) for i in range(len(losses))]
    return {
        "mean": np.mean(losses),
        "recent": np.dot(weights, losses) / sum(weights),
        "rival": np.dot(weights, rivals) / sum(weights),
        "spread": np.std(losses),
        "last": losses[-1],
        "difference": np.mean(differences),
        "visits": len(losses),
        "right": sum(right),
        "learnt": learnt,
        "forgotten": sum(a and not b for a, b in itertools.pairwise(right)),
        "guess": guess if votes else -1,
    }


def test_the_columns_are_those_of_a_slow_transcription():
    rng = np.random.default_rng(0)
    n, classes, steps = 30, 4, 25
    labels = rng.integers(0, classes, n)
    audit = Audit(n, labels)
    visits = {i: ([], [], []) for i in range(n)}
    for _ in range(steps):
        index = rng.permutation(n)[:20]
        loss, moved = rng.exponential(1.0, 20).astype(np.float32), rng.exponential(1.0, 20).astype(np.float32)
        z = torch.tensor(rng.normal(size=(20, classes)), dtype=torch.float32)
        audit.update(Feedback(torch.tensor(index), torch.tensor(loss), torch.tensor(moved), z))
        for i, a, b, p in zip(index, loss, moved, z.tolist(), strict=True):
            visits[i][0].append(float(a))
            visits[i][1].append(abs(float(b) - float(a)))
            visits[i][2].append(p)
    table = audit.table()
    halves = {name for name in ROW.names if ROW[name] == np.float16}
    for i, (losses, differences, outputs) in visits.items():
        for name, value in slow(losses, differences, outputs, labels[i]).items():
            exact = name in {"visits", "right", "learnt", "forgotten", "guess"}
            tolerance = 0 if exact else 0.01 if name in halves else 1e-5
            assert table[name][i] == pytest.approx(value, rel=tolerance, abs=tolerance), (i, name)


def test_a_sample_that_occurs_again_and_again_is_visited_each_time():
    rng = np.random.default_rng(1)
    once, at_a_time = Audit(5, np.arange(5)), Audit(5, np.arange(5))
    index, loss = rng.integers(0, 5, 200), torch.tensor(rng.exponential(1.0, 200), dtype=torch.float32)
    z = torch.tensor(rng.normal(size=(200, 5)), dtype=torch.float32)
    once.update(Feedback(torch.tensor(index), loss, loss + 0.1, z))
    for i in range(200):
        one = slice(i, i + 1)
        at_a_time.update(Feedback(torch.tensor(index[one]), loss[one], loss[one] + 0.1, z[one]))
    assert torch.equal(once.state_dict()["rows"], at_a_time.state_dict()["rows"])


def test_what_it_was_given_may_change_afterwards():
    audit, loss, z = Audit(2, [0, 0]), torch.tensor([1.0, 2.0]), torch.tensor([[0.0, 3.0], [0.0, 3.0]])
    audit.update(Feedback(torch.arange(2), loss, loss, z))
    loss.zero_(), z.zero_()
    assert audit.table()["last"].tolist() == [1.0, 2.0]
    assert audit.table()["rival"] == pytest.approx([math.log(1 + math.exp(3))] * 2, rel=1e-3)


def test_large_outputs_are_read_at_once_and_outputs_may_come_and_go(monkeypatch):
    """The rows are the same whether outputs wait, are read at once, or stand beside batches without any."""
    rng, rows = np.random.default_rng(2), []
    steps = [torch.tensor(rng.normal(size=(8, 3)), dtype=torch.float32) for _ in range(6)]
    for small in (2**14, 0):
        monkeypatch.setattr("ausam.audit.audit.SMALL", small)
        for missing in (None, 3):
            audit = Audit(8, np.arange(8) % 3)
            for k, z in enumerate(steps):
                loss = torch.nn.functional.cross_entropy(z, torch.arange(8) % 3, reduction="none")
                audit.update(Feedback(torch.arange(8), loss, loss, None if k == missing else z))
            rows.append(audit.state_dict()["rows"])
    assert torch.equal(rows[0], rows[2])
    assert torch.equal(rows[1], rows[3])
    assert not torch.equal(rows[0], rows[1])


@pytest.mark.parametrize("labels", [[1, 2], [0, 5]])
def test_labels_that_the_outputs_do_not_have_are_refused(labels):
    """Labels from 1 to C would be compared with the scores of their neighbours, and nobody would be suspected."""
    audit = Audit(2, labels)
    with pytest.raises(ValueError, match="2 columns, for the classes 0 to 1"):
        audit.update(Feedback(torch.arange(2), torch.ones(2), torch.ones(2), torch.tensor([[0.0, 1.0], [0.0, 1.0]])))
    assert audit.table()["visits"].tolist() == [0, 0]
    with pytest.raises(ValueError, match="but classes is 2"):
        Audit(2, labels, classes=2)


@pytest.mark.parametrize("outputs", [{"logits": torch.zeros(2, 2)}, (torch.zeros(2, 2), None), torch.zeros(2, 3, 4)])
def test_outputs_that_are_no_class_scores_are_said_to_be_left_out(outputs):
    audit, feedback = Audit(2, [0, 1]), Feedback(torch.arange(2), torch.ones(2), torch.ones(2), outputs)
    with pytest.warns(UserWarning, match="goes by the losses alone") as warned:
        audit.update(feedback)
    audit.update(feedback)  # this one in silence: a second warning would be an error
    assert len(warned) == 1
    assert audit.table()["visits"].tolist() == [2, 2]


@pytest.mark.parametrize("outputs", [torch.zeros(2), torch.zeros(2, 1), None])
def test_one_score_for_two_classes_is_nothing_to_warn_of(outputs, recwarn):
    Audit(2, [0, 1]).update(Feedback(torch.arange(2), torch.ones(2), torch.ones(2), outputs))
    Audit(2).update(Feedback(torch.arange(2), torch.ones(2), torch.ones(2), {"boxes": torch.zeros(2, 4)}))
    assert not recwarn


def test_it_takes_24_bytes_per_sample():
    assert ROW.itemsize == 24


def test_without_labels_a_small_loss_counts_as_right():
    audit = Audit(2)
    audit.update(Feedback(torch.tensor([0, 1]), torch.tensor([0.6, 0.8]), torch.tensor([0.7, 0.9])))
    assert audit.table()["right"].tolist() == [1, 0]
    assert "label" not in audit.table()


def test_losses_that_are_missing_or_infinite_are_passed_over():
    audit = Audit(3)
    nan = math.nan
    audit.update(Feedback(torch.arange(3), torch.tensor([1.0, nan, math.inf]), torch.tensor([nan, nan, nan])))
    assert audit.table()["visits"].tolist() == [1, 0, 0]
    assert audit.table()["difference"][0] == 0


def test_sixty_six_thousand_visits_keep_the_mean():
    audit = Audit(1)
    audit._rows["visits"], audit._rows["loss"], audit._rows["right"] = 65535, 65535 * 2.0, 65535
    audit._rows["learnt"] = 1
    audit.update(Feedback(torch.tensor([0]), torch.tensor([2.0]), torch.tensor([2.0])))
    assert audit.table()["mean"][0] == pytest.approx(2.0, rel=1e-4)
    assert audit.table()["visits"][0] == 32768


@pytest.mark.parametrize(
    ("feedback", "remedy"),
    [
        ([1.0], "opt.backward"),
        (Feedback(None, torch.ones(1), torch.ones(1)), "index="),
        (Feedback(torch.tensor([7]), torch.ones(1), torch.ones(1)), "7"),
        (Feedback(torch.tensor([-1]), torch.ones(1), torch.ones(1)), "-1"),
        (Feedback(torch.tensor([0, 1]), torch.ones(1), torch.ones(1)), "one loss per sample"),
    ],
)
def test_what_cannot_be_recorded_is_refused_and_changes_nothing(feedback, remedy):
    audit = Audit(3)
    with pytest.raises((TypeError, ValueError), match=remedy):
        audit.update(feedback)
    assert audit.table()["visits"].sum() == 0


@pytest.mark.parametrize("labels", [[0, 1], [0.5, 1.5, 2.5], [[0], [1], [2]], [0, -1, 2]])
def test_labels_that_do_not_fit_are_refused(labels):
    with pytest.raises(ValueError, match="labels"):
        Audit(3, labels)


def test_the_state_is_saved_and_loaded():
    audit = Audit(4, [0, 1, 1, 0])
    z = torch.tensor([[2.0, 1.0], [0.0, 1.0]])
    audit.update(Feedback(torch.tensor([0, 2]), torch.tensor([0.3, 0.9]), torch.tensor([0.4, 1.5]), z))
    copy = Audit(4, [0, 1, 1, 0])
    copy.load_state_dict(audit.state_dict())
    for name, column in audit.table().items():
        np.testing.assert_array_equal(column, copy.table()[name])


def test_a_state_that_was_loaded_onto_another_device_comes_back():
    audit, copy = Audit(2, [0, 1]), Audit(2, [0, 1])
    audit.update(Feedback(torch.tensor([0]), torch.tensor([1.0]), torch.tensor([1.0])))
    copy.load_state_dict(moved(audit.state_dict()))
    assert torch.equal(copy.state_dict()["rows"], audit.state_dict()["rows"])


@pytest.mark.parametrize(
    "state", [None, [], {}, {"classes": 1}, {"rows": torch.empty(48, dtype=torch.uint8, device="meta")}]
)
def test_what_is_no_state_is_refused(state):
    """A state with fewer classes than the labels have is not of this data, and a meta tensor has no values."""
    audit = Audit(2, [0, 1])
    with pytest.raises(ValueError, match="not the state of an audit of 2 samples"):
        audit.load_state_dict(audit.state_dict() | state if state else state)


@pytest.mark.parametrize(
    "change", [{"rows": torch.zeros(3)}, {"touched": None}, {"classes": "x"}, {"rows": 1}, {"layout": "loss:<f4"}]
)
def test_a_state_that_does_not_fit_changes_nothing(change):
    audit = Audit(2)
    audit.update(Feedback(torch.tensor([0]), torch.tensor([1.0]), torch.tensor([1.0])))
    before = audit.table()
    with pytest.raises(ValueError, match="2 samples"):
        audit.load_state_dict(audit.state_dict() | change)
    for name, column in audit.table().items():
        np.testing.assert_array_equal(column, before[name])


def test_what_needs_the_number_of_classes_says_so():
    audit = Audit(3)
    with pytest.raises(ValueError, match="classes="):
        audit.suspects()
