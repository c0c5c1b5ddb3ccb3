"""Steps that were skipped are said; a run that took none has failed."""

import json
import re
from pathlib import Path

import pytest

from tests.lab.helpers import read, run

MINE = """
import torch
from torch.utils.data import TensorDataset

def rows(bad):
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    x[:bad] = torch.nan
    return TensorDataset(x, torch.arange(64) % 2), TensorDataset(torch.zeros(8, 4), torch.arange(8) % 2)

def all_bad():
    return rows(64)

def one_bad():
    return rows(1)

def net(classes, channels):
    return torch.nn.Linear(channels, classes)
"""
WHY = "because the loss or the gradient was not finite"
FLAGS = ["--model", "mine_nan:net", "--epochs", 2, "--batch-size", 16, "--threads", 1]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_nan.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.filterwarnings("ignore:The loss or the gradient")
def test_a_run_that_took_no_step_fails(mine, capsys):
    for _ in range(2):  # also when it is found finished
        assert run("train", "--data", "mine_nan:all_bad", *FLAGS, "--resume", "--out", "run") == 1
        out, err = capsys.readouterr()
        assert f"; 8 of 8 steps skipped, {WHY}; run/result.json" in out
        assert err.splitlines()[-1] == (
            f"ausam: the run in run learnt nothing: every step was skipped, {WHY}. Look for NaN or inf in the "
            "data, or use a smaller --lr."
        )


@pytest.mark.filterwarnings("ignore:The loss or the gradient")
def test_some_skipped_steps_are_in_the_last_line(mine, capsys):
    assert run("train", "--data", "mine_nan:one_bad", *FLAGS, "--out", "run") == 0
    assert f"; 2 of 8 steps skipped, {WHY}; run/result.json" in capsys.readouterr().out
    result = read("run/result.json")
    assert (result["skipped_steps"], result["steps"]) == (2, 6)
    losses = [json.loads(line)["train_loss"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert all(0 < loss < 2 for loss in losses)  # the mean of those that are finite


@pytest.mark.filterwarnings("ignore:The loss or the gradient")
def test_a_comparison_with_such_a_run_fails(mine, capsys):
    assert run("compare", "sgd", "--seeds", 2, "--data", "mine_nan:all_bad", *FLAGS, "--out", "runs") == 1
    out, err = capsys.readouterr()
    assert f"SGD: 16 steps skipped in 2 runs, {WHY}." in " ".join(out.split())
    assert "ausam: sgd seed 0, sgd seed 1 learnt nothing: every step was skipped" in err


@pytest.mark.parametrize("command", [["train"], ["compare", "sgd", "--seeds", 1]], ids=lambda c: c[0])
def test_nonfinite_raise_ends_with_a_sentence(mine, capsys, command):
    argv = [*command, "--data", "mine_nan:one_bad", *FLAGS, "--nonfinite", "raise", "--out", "run"]
    assert run(*argv) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert re.search(r"step \d is not finite", said)
    assert "--nonfinite skip" in said


def test_nonfinite_ignore_takes_every_step_and_its_checkpoints_are_whole(mine, capsys, caplog):
    argv = ["train", "--data", "mine_nan:one_bad", *FLAGS, "--nonfinite", "ignore", "--out", "run"]
    assert run(*argv) == 0
    result = read("run/result.json")
    assert (result["skipped_steps"], result["steps"]) == (0, 8)
    Path("run/result.json").unlink()
    assert run(*argv, "--resume") == 0  # from a checkpoint whose weights are no numbers any more
    assert "damaged" not in caplog.text
    assert read("run/result.json")["weights_sha256"] == result["weights_sha256"]
    assert "nan" in Path("run/metrics.jsonl").read_text().lower()
