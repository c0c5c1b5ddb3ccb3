"""The settings of a run: a leaf of the lab, which repeats what the library allows."""

from typing import get_args

import pytest

from ausam.common.settings import rules
from ausam.optimizer.nonfinite import NonFinite
from ausam.optimizer.rho_schedule import Shape
from ausam_lab.config import Config
from tests.lab.helpers import read, run


@pytest.mark.parametrize(("name", "allowed"), [("nonfinite", NonFinite), ("rho_schedule", Shape)])
def test_choices_are_those_of_the_library(name, allowed):
    rule, _ = rules(Config)[name]
    assert set(rule.names) == set(get_args(allowed))


@pytest.mark.parametrize("name", ["batch_size", "epochs", "seed", "data_seed", "train_size", "workers"])
@pytest.mark.parametrize("number", [10**18, 10**30])
def test_a_number_that_no_file_of_a_run_holds_is_refused(tmp_path, capsys, name, number):
    assert run("train", "--epochs", 1, f"--{name.replace('_', '-')}", number, "--out", tmp_path / "run") == 2
    assert f"{name} is {number}. It must be" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_largest_seed_works(tmp_path):
    flags = ["--epochs", 1, "--train-size", 64, "--test-size", 20, "--threads", 1]
    assert run("train", *flags, "--seed", 10**12, "--out", tmp_path) == 0
    assert read(tmp_path / "result.json")["seed"] == 10**12
