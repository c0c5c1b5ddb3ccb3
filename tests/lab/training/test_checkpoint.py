"""A damaged checkpoint is passed over for the previous one, and nothing in one is executed."""

import os
import pickle

import pytest
import torch

from ausam_lab.data.catalogue import resolve
from ausam_lab.training import checkpoint
from ausam_lab.training.loop import finish, train
from tests.lab.blobs import config
from tests.lab.helpers import without_times

BASE = {"epochs": 4, "train_size": 128, "test_size": 50, "threads": 1, "policy": "ausampling", "ramp": 2}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    return finish(train(resolve(**BASE), out)), without_times(out)


@pytest.fixture
def begun(tmp_path):
    """A folder with a run that was stopped after three epochs."""
    training = train(resolve(**BASE), tmp_path / "run")
    for _ in range(3):
        next(training)
    training.close()
    return tmp_path / "run"


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_the_hostile_object_of_these_tests_is_hostile(tmp_path):
    pickle.loads(pickle.dumps(Hostile(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize("damage", ["truncated", "empty", "hostile", "other"])
def test_a_damaged_checkpoint_is_logged_and_passed_over(undisturbed, begun, caplog, damage):
    newest = checkpoint.newest_first(begun)[0]
    whole = newest.read_bytes()
    newest.unlink()
    if damage == "hostile":  # loading it would run somebody's code
        torch.save({"model": Hostile(begun / "executed")}, newest)
    elif damage == "other":
        torch.save([torch.zeros(3)], newest)
    else:
        newest.write_bytes(whole[: len(whole) // 2] if damage == "truncated" else b"")
    run = finish(train(resolve(**BASE), begun, resume=True))
    assert f"{newest} is damaged" in caplog.text
    assert not (begun / "executed").exists()
    assert (run.weights_sha256, without_times(begun)) == (undisturbed[0].weights_sha256, undisturbed[1])


def test_every_part_of_a_checkpoint_is_read_back(tmp_path, caplog):
    """The audit's numbers, once it has found two groups, were NumPy's, which weights_only refuses."""
    settings = config()
    training = train(settings, tmp_path)
    for _ in range(7):
        next(training)
    training.close()
    saved = checkpoint.load(tmp_path)
    assert "damaged" not in caplog.text
    assert len(saved.epochs) == 7
    assert saved.audit["best_distance"] > 0


def test_without_any_whole_checkpoint_it_begins_again(undisturbed, begun, caplog):
    for path in checkpoint.newest_first(begun):
        path.write_bytes(b"nonsense")
    run = finish(train(resolve(**BASE), begun, resume=True))
    assert caplog.text.count("is damaged") == 2
    assert run.weights_sha256 == undisturbed[0].weights_sha256


@pytest.mark.parametrize("other", [{"train_size": 64}, {"model": "resnet-small-w8"}, {"policy": "infobatch"}])
def test_the_checkpoint_of_another_run_is_refused(begun, tmp_path, other):
    """Of other data, another network, another policy."""
    training = train(resolve(**{**BASE, "ramp": None, **other}), tmp_path / "other")
    next(training)
    training.close()
    (theirs,) = checkpoint.newest_first(tmp_path / "other")
    (begun / "checkpoint-00009.pt").write_bytes(theirs.read_bytes())
    with pytest.raises(ValueError, match=r"checkpoint-00009.pt does not fit this run .*remove that file"):
        finish(train(resolve(**BASE), begun, resume=True))


def test_names_of_checkpoints_sort_as_numbers(tmp_path):
    for epoch in (99_999, 100_000, 100_001):
        (tmp_path / f"checkpoint-{epoch:05d}.pt").touch()
    assert [p.stem for p in checkpoint.newest_first(tmp_path)][-1] == "checkpoint-99999"
