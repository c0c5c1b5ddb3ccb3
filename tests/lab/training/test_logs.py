"""``--log``: every epoch once, however often the run is stopped."""

import csv

import pytest

from ausam_lab.training import logs
from ausam_lab.training.loop import train
from tests.lab.helpers import read, run

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
        patch.setattr("ausam_lab.cli.commands.train", stopping)
        return run(*argv)


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_per_epoch_also_after_a_resume(tmp_path, monkeypatch):
    argv = ["train", *FEW, "--log", "csv", "--out", tmp_path / "run"]
    assert stopped_after(monkeypatch, 2, *argv) == 130
    assert [row["epoch"] for row in table(tmp_path / "run" / "metrics.csv")] == ["1", "2"]
    for _ in range(2):  # the second finds the run finished
        assert run(*argv, "--resume") == 0
        rows = table(tmp_path / "run" / "metrics.csv")
        assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert float(rows[-1]["test_accuracy"]) == read(tmp_path / "run" / "result.json")["test"]["value"]
    (tmp_path / "run" / "metrics.csv").unlink()
    assert run(*argv, "--resume") == 0
    assert table(tmp_path / "run" / "metrics.csv") == rows


def test_tensorboard_has_each_epoch_once_and_runs_apart(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    argv = ["compare", "sgd", "sam", "--seeds", 1, *FEW, "--tensorboard", "--out", tmp_path / "out"]
    for _ in range(2):
        assert run(*argv) == 0
        for name in ("sgd", "sam"):
            events = EventAccumulator(str(tmp_path / "out" / "tensorboard" / name / "seed-0")).Reload()
            assert [event.step for event in events.Scalars("test_accuracy")] == [1, 2, 3]


@pytest.mark.parametrize("command", [["train"], ["compare", "sgd"], ["reproduce", "table1"]], ids=lambda c: c[0])
def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, capsys, command):
    monkeypatch.setattr(logs.importlib.util, "find_spec", lambda name: None)
    assert run(*command, "--log", "tensorboard", "--out", tmp_path / "out") == 2
    assert "pip install tensorboard" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
