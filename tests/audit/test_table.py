"""The audit's table against a slow transcription, what may be fed, and its state."""

import itertools
import math

import numpy as np
import pytest
import torch

from ausam import Feedback
from ausam.audit import Audit
from ausam.audit.table import COLUMNS
from tests.helpers import moved, same_audit, through_a_file


def slow_average(margins):
    """The geometric mean over the last visits, from half of the largest power of two up to their number."""
    begin = 1
    while 4 * begin <= len(margins):
        begin *= 2
    return math.exp(np.mean(np.log(margins[begin - 1 :])))


def slow(losses, outputs, label):
    """One sample's columns from the lists of its visits."""
    others = [[o if c != label else -math.inf for c, o in enumerate(z)] for z in outputs]
    margins = [math.log(1 + math.exp(max(o) - z[label])) for o, z in zip(others, outputs, strict=True)]
    agrees = [z[label] > max(o) for o, z in zip(others, outputs, strict=True)]
    rival, votes = -1, 0
    for other in others:
        c = other.index(max(other))
        if votes == 0:
            rival, votes = c, 1
        else:
            votes += 1 if c == rival else -1
    return {
        "mean": np.mean(losses),
        "spread": np.std(losses),
        "last": losses[-1],
        "margin": slow_average(margins),
        "visits": len(losses),
        "learned": next((i + 1 for i in range(len(agrees)) if all(agrees[i:])), 0),
        "forgotten": sum(a and not b for a, b in itertools.pairwise(agrees)),
        "likely": rival,
    }


def test_the_columns_are_those_of_a_slow_transcription():
    rng = np.random.default_rng(0)
    n, classes = 30, 4
    labels = rng.integers(0, classes, n)
    audit, visits = Audit(n, labels), {i: ([], []) for i in range(n)}
    for _ in range(25):
        index, z = rng.permutation(n)[:20], rng.normal(size=(20, classes)).astype(np.float32)
        loss = rng.exponential(1.0, 20).astype(np.float32)
        audit.update(torch.tensor(index), torch.tensor(loss), torch.tensor(z))
        for i, a, p in zip(index, loss, z.tolist(), strict=True):
            visits[i][0].append(float(a))
            visits[i][1].append(p)
    table = audit.table()
    for i, (losses, outputs) in visits.items():
        for name, value in slow(losses, outputs, labels[i]).items():
            assert table[name][i] == pytest.approx(value, rel=1e-4, abs=1e-4), (i, name)


def test_a_sample_that_occurs_again_and_again_is_visited_each_time():
    rng = np.random.default_rng(1)
    once, at_a_time = Audit(5, np.arange(5)), Audit(5, np.arange(5))
    index, loss = rng.integers(0, 5, 4), torch.tensor(rng.exponential(1.0, 4), dtype=torch.float32)
    z = torch.tensor(rng.normal(size=(4, 5)), dtype=torch.float32)
    once.update(torch.tensor(index), loss, z)
    for i in range(4):
        at_a_time.update(torch.tensor(index[i : i + 1]), loss[i : i + 1], z[i : i + 1])
    same_audit(once, at_a_time)


def test_what_it_was_given_may_change_afterwards():
    audit, loss, z = Audit(2, [0, 0]), torch.tensor([1.0, 2.0]), torch.tensor([[0.0, 3.0], [0.0, 3.0]])
    audit.update(Feedback(torch.arange(2), loss, loss, z))
    loss.zero_(), z.zero_()
    assert audit.table()["last"].tolist() == [1.0, 2.0]
    assert audit.table()["margin"] == pytest.approx([math.log(1 + math.exp(3))] * 2, rel=1e-5)


def test_feedback_and_arrays_are_the_same_audit():
    z, y = torch.randn(6, 3), torch.arange(6) % 3
    loss = torch.nn.functional.cross_entropy(z, y, reduction="none")
    by_feedback, by_arrays, watched = Audit(6, y), Audit(6, y), Audit(6, y)
    by_feedback.update(Feedback(torch.arange(6), loss, loss, z))
    by_arrays.update(torch.arange(6), loss, z)
    criterion = watched.watch(torch.nn.CrossEntropyLoss())
    assert torch.equal(criterion(z, y, torch.arange(6)), torch.nn.functional.cross_entropy(z, y))
    with torch.no_grad():
        criterion(z, y, torch.arange(6))  # validation is not recorded
    same_audit(by_feedback, by_arrays)
    same_audit(by_feedback, watched)


def test_only_a_criterion_with_a_reduction_can_be_watched():
    with pytest.raises(TypeError, match="reduction"):
        Audit(3).watch(torch.nn.functional.cross_entropy)


@pytest.mark.parametrize("labels", [[1, 2], [0, 5]])
def test_labels_that_the_outputs_do_not_have_are_refused(labels):
    """Labels from 1 to C would be compared with the scores of their neighbours, and none would be flagged."""
    audit = Audit(2, labels)
    with pytest.raises(ValueError, match="2 columns, for the classes 0 to 1"):
        audit.update(torch.arange(2), torch.ones(2), torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    assert audit.table()["visits"].tolist() == [0, 0]
    with pytest.raises(ValueError, match="but classes is 2"):
        Audit(2, labels, classes=2)


@pytest.mark.parametrize("outputs", [{"logits": torch.zeros(2, 2)}, (torch.zeros(2, 2), None), torch.zeros(2, 3, 4)])
def test_outputs_that_are_no_class_scores_are_said_to_be_left_out(outputs):
    audit = Audit(2, [0, 1])
    with pytest.warns(UserWarning, match="goes by the losses alone") as warned:
        audit.update(torch.arange(2), torch.ones(2), outputs)
    audit.update(torch.arange(2), torch.ones(2), outputs)  # this one in silence: a second warning would be an error
    assert len(warned) == 1
    assert audit.table()["visits"].tolist() == [2, 2]


@pytest.mark.parametrize("outputs", [torch.zeros(2), torch.zeros(2, 1), None])
def test_one_score_for_two_classes_is_nothing_to_warn_of(outputs, recwarn):
    Audit(2, [0, 1]).update(torch.arange(2), torch.ones(2), outputs)
    Audit(2).update(torch.arange(2), torch.ones(2), {"boxes": torch.zeros(2, 4)})
    assert not recwarn


def test_it_takes_52_bytes_per_sample():
    assert sum(np.dtype(kind).itemsize for kind in COLUMNS.values()) == 52


def test_without_labels_a_small_loss_counts_as_agreement():
    audit = Audit(2)
    audit.update(torch.tensor([0, 1]), torch.tensor([0.6, 0.8]))
    assert audit.table()["learned"].tolist() == [1, 0]
    assert "label" not in audit.table()


def test_losses_that_are_missing_or_infinite_are_skipped():
    audit = Audit(3, [0, 1, 0])
    audit.update(torch.arange(3), torch.tensor([1.0, math.nan, math.inf]), torch.randn(3, 2))
    assert audit.table()["visits"].tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (([1.0],), "opt.backward"),
        ((torch.arange(2),), "losses"),
        ((Feedback(None, torch.ones(1), torch.ones(1)),), "index="),
        ((torch.tensor([7]), torch.ones(1)), "7"),
        ((torch.tensor([-1]), torch.ones(1)), "-1"),
        ((torch.tensor([0, 1]), torch.ones(1)), "one loss per sample"),
        ((torch.tensor([0, 1]), torch.tensor(1.0)), "reduction"),
    ],
)
def test_what_cannot_be_recorded_is_refused_and_changes_nothing(given, remedy):
    audit = Audit(3)
    with pytest.raises((TypeError, ValueError), match=remedy):
        audit.update(*given)
    assert audit.table()["visits"].sum() == 0


@pytest.mark.parametrize("labels", [[0, 1], [0.5, 1.5, 2.5], [[0], [1], [2]], [0, -1, 2]])
def test_labels_that_do_not_fit_are_refused(labels):
    with pytest.raises(ValueError, match="labels"):
        Audit(3, labels)


def fed(n=40, epochs=3, classes=4):
    audit, generator = Audit(n, np.arange(n) % classes), torch.Generator().manual_seed(0)
    for _ in range(epochs):
        audit.update(torch.arange(n), torch.rand(n, generator=generator), torch.randn(n, classes, generator=generator))
    return audit


def test_the_state_is_saved_and_loaded():
    audit = fed()
    audit.update(torch.tensor([3]), torch.tensor([1.0]))
    loaded = Audit(40, np.arange(40) % 4)
    loaded.load_state_dict(audit.state_dict())
    same_audit(audit, loaded)
    for audited in (audit, loaded):
        audited.update(torch.arange(40), torch.ones(40))
    same_audit(audit, loaded)


def test_the_state_is_in_a_checkpoint_that_torch_reads():
    """``torch.load(weights_only=True)`` takes no NumPy number, such as the distance of groups that were found."""
    audit, rng = Audit(400), torch.Generator().manual_seed(0)
    level = torch.where(torch.arange(400) % 5 == 0, 4.0, 0.05)
    for _ in range(8):
        audit.update(torch.arange(400), level * torch.exp(0.3 * torch.randn(400, generator=rng)))
    state = audit.state_dict()
    assert type(state["best_distance"]) is float
    assert through_a_file(state)["best_distance"] == state["best_distance"] > 2


def test_a_state_that_was_loaded_onto_another_device_comes_back():
    audit, loaded = fed(), Audit(40, np.arange(40) % 4)
    loaded.load_state_dict(moved(audit.state_dict()))
    same_audit(audit, loaded)


@pytest.mark.parametrize(
    "change",
    [
        {"visits": torch.zeros(3, dtype=torch.int32)},
        {"touched": None},
        {"newer": 1},
        {"classes": 1},
        None,
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change):
    audit, before = fed(), fed()
    with pytest.raises(ValueError, match="not the state of an audit of 40 samples"):
        audit.load_state_dict({} if change is None else audit.state_dict() | change)
    same_audit(audit, before)


def test_what_needs_the_number_of_classes_says_so():
    with pytest.raises(ValueError, match="classes="):
        Audit(3).chance_loss()
