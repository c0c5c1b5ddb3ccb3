"""A task of the user's own on the command line: regression with float targets, in train, compare and tune."""

from __future__ import annotations

import pytest
import torch

from ausam_lab.data.catalogue import forget
from ausam_lab.experiments import tune
from tests.lab.helpers import load, read, run

CODE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset


def data():
    x = torch.randn(120, 3, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1
    return TensorDataset(x[:80], y[:80]), TensorDataset(x[80:], y[80:])


def network(outputs, inputs):
    return nn.Linear(inputs, outputs)


class Regression:
    metric = "RMSE"
    lower_is_better = True

    def losses(self, outputs, targets):
        return (outputs - targets).square().mean(1)

    def score(self, outputs, targets):
        return (outputs - targets).square().mean().sqrt()


class Mean(Regression):
    def losses(self, outputs, targets):
        return (outputs - targets).square().mean()


class Nothing:
    metric = "RMSE"
"""
FLAGS = ["--epochs", 3, "--batch-size", 16, "--lr", 0.1, "--rho", 0.05, "--threads", 1]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task_of_mine.py").write_text(CODE)
    forget()
    return ["--data", "task_of_mine.py:data", "--model", "task_of_mine.py:network"]


def test_the_score_is_the_users(mine, tmp_path):
    task = ["--task", "task_of_mine.py:Regression"]
    assert run("train", "ausam-0.5", *mine, *task, *FLAGS, "--out", "run") == 0
    result = read(tmp_path / "run" / "result.json")
    score = result["test"]
    assert (score["name"], score["lower_is_better"], score["unit"]) == ("RMSE", True, "")
    weights = torch.load(tmp_path / "run" / "checkpoint-00003.pt", weights_only=True)["model"]
    problem = load("task_of_mine.py:data", task="task_of_mine.py:Regression")
    x, y = (torch.cat(part) for part in zip(*problem.in_order("test"), strict=True))
    by_hand = (x @ weights["weight"].T + weights["bias"] - y).square().mean().sqrt()
    assert score["value"] == pytest.approx(float(by_hand), rel=1e-5)
    assert score["value"] < 2.0  # it learns: without training it is about 2.3


def test_compare_and_tune(mine, tmp_path):
    task = ["--task", "task_of_mine.py:Regression"]
    assert run("compare", "sgd", "sam+random", *mine, *task, *FLAGS, "--seeds", 2, "--out", "all") == 0
    assert {one["run"]["test"]["name"] for one in read(tmp_path / "all" / "results.json")["runs"]} == {"RMSE"}
    others = [*FLAGS[:4], *FLAGS[6:]]  # all but the learning rate
    assert run("tune", *mine, *task, *others, "--over", "lr=0.001,0.1", "--out", "tuned") == 0
    assert tune.load(tmp_path / "tuned").best_params == {"lr": 0.1}  # RMSE: lower is better


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task", "task_of_mine.py:Nothing"], "needs losses, score"),
        (["--task", "task_of_mine.py:Mean"], "one loss per sample"),
        (["--task", "task_of_mine.py:Regression", "--label-noise", 0.2], "--label-noise 0"),
        (["--task", "task_of_mine.py:Regression", "--label-smoothing", 0.1], "--label-smoothing"),
        (["--task", "task_of_mine.py:Regression", "--select-epoch", 0.2], "--select-epoch"),
        ([], "number of a class"),
    ],
)
def test_what_does_not_fit_is_refused(mine, capsys, flags, message):
    assert run("train", *mine, *flags, *FLAGS, "--out", "run") in (1, 2)
    assert message in capsys.readouterr().err


def test_data_with_a_task_refuses_another(mine, capsys):
    assert run("train", "--task", "task_of_mine.py:Regression", *FLAGS, "--out", "run") == 2
    assert "Leave out --task" in capsys.readouterr().err
