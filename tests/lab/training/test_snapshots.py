"""--every: the weights of earlier epochs stay, and nothing else changes."""

import pytest
import torch

from ausam_lab.data.catalogue import resolve
from ausam_lab.training import checkpoint, snapshots
from ausam_lab.training.loop import train
from tests.lab.helpers import read, run

BASE = {"policy": "ausampling", "ramp": 2, "epochs": 5, "train_size": 200, "test_size": 100, "threads": 1}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    out = tmp_path_factory.mktemp("kept") / "run"
    for _ in train(resolve(**BASE, every=2), out):
        pass
    return out


def files(out):
    return sorted(p.name for p in out.glob("*-0*.pt"))


def test_every_second_epoch_and_the_last_are_there(kept):
    assert [s.epoch for s in snapshots.available(kept)] == [2, 4, 5]
    assert len(list(kept.glob("snapshot-*.pt"))) == 2
    assert len(list(kept.glob("checkpoint-*.pt"))) == 2


def test_the_run_is_the_same_as_without(kept, tmp_path):
    for _ in train(resolve(**BASE), tmp_path / "run"):
        pass
    assert read(tmp_path / "run" / "result.json")["weights_sha256"] == read(kept / "result.json")["weights_sha256"]
    assert not list((tmp_path / "run").glob("snapshot-*"))


def test_a_snapshot_holds_the_weights_of_its_epoch(kept, tmp_path):
    steps = train(resolve(**BASE, every=2), tmp_path / "run")
    next(steps), next(steps)
    then = checkpoint.load(tmp_path / "run")
    steps.close()
    saved = snapshots.available(kept)[0].load()
    assert all(torch.equal(saved["model"][k], v) for k, v in then.model.items())
    assert torch.equal(saved["sampler"]["scores"]["sum"], then.sampler["scores"]["sum"])
    assert saved.keys() == snapshots.KINDS.keys()


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_run_that_was_stopped_ends_with_the_same_files(kept, tmp_path, stop):
    out = tmp_path / "run"
    config = resolve(**BASE, every=2)
    steps = train(config, out)
    for _ in range(stop):
        next(steps)
    steps.close()
    for _ in train(config, out, resume=True):
        pass
    assert read(out / "result.json")["weights_sha256"] == read(kept / "result.json")["weights_sha256"]
    assert [n for n in files(out) if n.startswith("snapshot")] == [n for n in files(kept) if n.startswith("snapshot")]


def test_keeping_may_begin_in_the_middle_and_forgetting_it_removes_nothing(tmp_path):
    out = tmp_path / "run"
    steps = train(resolve(**BASE, every=1), out)
    next(steps)
    steps.close()
    for _ in train(resolve(**BASE), out, resume=True):
        pass
    assert [s.epoch for s in snapshots.available(out)] == [1, 4, 5]


def test_a_damaged_snapshot_is_named(kept, tmp_path):
    path = tmp_path / next(kept.glob("snapshot-*.pt")).name
    path.write_bytes(b"x")
    with pytest.raises(ValueError, match="is damaged"):
        snapshots.available(tmp_path)[0].load()


def test_a_number_below_zero_is_refused(tmp_path, capsys):
    assert run("train", "--every", -1, "--out", tmp_path / "run") == 2
    assert "every is -1" in capsys.readouterr().err
