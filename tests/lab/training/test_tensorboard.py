"""``--tensorboard``: every epoch once, however often the run is stopped."""

import pytest

from ausam_lab.data import catalogue
from ausam_lab.training.loop import train
from tests.lab.helpers import run

FEW = ["--epochs", 3, "--train-size", 64, "--test-size", 20, "--threads", 1]


def stopped_after(monkeypatch, epochs, *argv):
    """The exit code of a command whose run is stopped after so many epochs."""

    def stopping(*args, **how):
        rows = train(*args, **how)
        for _ in range(epochs):
            yield next(rows)
        rows.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ausam_lab.cli.train.train", stopping)
        return run(*argv)


def logged(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return [event.step for event in EventAccumulator(str(folder / "tensorboard")).Reload().Scalars("test_accuracy")]


def test_each_epoch_is_there_once_also_after_a_resume(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    argv = ["train", *FEW, "--tensorboard", "--out", tmp_path]
    assert stopped_after(monkeypatch, 2, *argv) == 130
    assert logged(tmp_path) == [1, 2]
    for _ in range(2):  # the second finds the run finished
        assert run(*argv, "--resume") == 0
        assert logged(tmp_path) == [1, 2, 3]


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(catalogue, "find_spec", lambda name: None)
    assert run("train", "--tensorboard", "--out", tmp_path / "out") == 2
    assert "pip install tensorboard" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
