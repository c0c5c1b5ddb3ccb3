"""What a finished run keeps of its checkpoints, and what can still be done with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ausam_lab.data.catalogue import resolve
from ausam_lab.records import store
from ausam_lab.records.run import Run
from ausam_lab.training import snapshots, weights
from ausam_lab.training.loop import train

CONFIG = resolve(train_size=64, test_size=20, epochs=2, batch_size=32, threads=1, lr_steps="1")


def files(folder):
    return sorted(path.name for path in folder.glob("*.pt"))


def sha256(folder):
    return store.read_finished(folder / "result.json", Run).weights_sha256


@pytest.mark.parametrize("settings", [{}, {"average": 0.9, "select_epoch": 0.25}], ids=["plain", "kept"])
def test_the_weights_alone(tmp_path, settings):
    config = replace(CONFIG, **settings)
    list(train(config, tmp_path / "all"))
    list(train(replace(config, keep="weights"), tmp_path / "weights"))
    assert files(tmp_path / "all") == ["checkpoint-00001.pt", "checkpoint-00002.pt"]
    assert files(tmp_path / "weights") == ["snapshot-00002.pt"]
    assert sha256(tmp_path / "all") == sha256(tmp_path / "weights")
    assert weights.sha256(weights.read(tmp_path / "weights")) == sha256(tmp_path / "all")  # for --init
    assert [saved.epoch for saved in snapshots.available(tmp_path / "weights")] == [2]  # for ausam diagnose
    one, other = (sum(p.stat().st_size for p in (tmp_path / name).glob("*.pt")) for name in ("weights", "all"))
    assert one < other / 3


def test_nothing(tmp_path):
    config = replace(CONFIG, keep="none")
    list(train(config, tmp_path))
    assert files(tmp_path) == []
    assert list(train(config, tmp_path, resume=True)) == []  # it has ended
    with pytest.raises(ValueError, match="no intact checkpoint"):
        weights.read(tmp_path)
    with pytest.raises(ValueError, match=r"kept no checkpoint.*another --out"):
        list(train(replace(config, epochs=3), tmp_path, resume=True))


def test_a_run_that_was_killed_while_it_removed_them_goes_on(tmp_path):
    list(train(CONFIG, tmp_path))
    assert list(train(replace(CONFIG, keep="weights"), tmp_path, resume=True)) == []
    assert files(tmp_path) == ["snapshot-00002.pt"]
