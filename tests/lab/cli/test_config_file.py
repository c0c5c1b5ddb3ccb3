"""``--config``: the settings of a file, under the flags of the command line."""

import json
import os

import pytest

from ausam_lab.config import Config
from tests.lab.helpers import read, run

FEW = {"epochs": 1, "train_size": 64, "test_size": 20, "threads": 1}


def toml(path, **settings):
    path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in settings.items()))
    return path


def test_a_run_from_the_config_of_another_is_the_same_run(tmp_path):
    few = ["--epochs", 2, "--train-size", 64, "--test-size", 20, "--threads", 1]
    assert run("train", "--policy", "ausampling", "--lr", 0.02, *few, "--out", tmp_path / "a") == 0
    assert run("train", "--config", tmp_path / "a" / "config.json", "--out", tmp_path / "b") == 0
    assert read(tmp_path / "b" / "config.json") == read(tmp_path / "a" / "config.json")
    one, other = (read(tmp_path / name / "result.json") for name in "ab")
    assert one["weights_sha256"] == other["weights_sha256"]


def test_another_method_or_policy_has_a_label_of_its_own(tmp_path):
    file = toml(tmp_path / "mine.toml", **FEW, method="SAM", label="SAM", kind="method")
    for flags, label in (([], "SAM"), (["--method", "gsam"], ""), (["--policy", "random"], "")):
        assert run("train", "--config", file, *flags, "--out", tmp_path / f"run{flags}") == 0
        assert read(tmp_path / f"run{flags}" / "config.json")["label"] == label


def test_flags_come_before_the_file_and_the_file_before_the_data_set(tmp_path):
    file = toml(tmp_path / "mine.toml", **FEW, lr=0.02, batch_size=16)
    assert run("train", "--config", file, "--lr", 0.03, "--out", tmp_path / "run") == 0
    config = read(tmp_path / "run" / "config.json")
    assert (config["lr"], config["batch_size"], config["epochs"]) == (0.03, 16, 1)
    assert config["label_noise"] == 0.2  # neither says it: it is what suits the digits


def test_what_suits_the_data_is_not_asked_for(tmp_path, capsys):
    """The config.json of a run without a radius holds the one that suits its data."""
    few = ["--epochs", 1, "--train-size", 64, "--test-size", 20, "--threads", 1]
    assert run("train", "--method", "plain", *few, "--out", tmp_path / "a") == 0
    assert read(tmp_path / "a" / "config.json")["rho"] == 0.2
    assert run("train", "--config", tmp_path / "a" / "config.json", "--out", tmp_path / "b") == 0
    file = toml(tmp_path / "mine.toml", method="plain", rho=0.3)
    assert run("train", "--config", file, *few, "--out", tmp_path / "c") == 2
    assert "--rho has no effect: Plain sets" in capsys.readouterr().err


def test_compare_takes_what_its_runs_share(tmp_path, capsys):
    file = toml(tmp_path / "mine.toml", **FEW, seed=4, method="SAM", policy="Full")
    assert run("compare", "sgd", "--seeds", 1, "--config", file, "--out", tmp_path / "a") == 0
    assert read(tmp_path / "a" / "results.json")["seeds"] == [4]
    assert run("compare", "sgd", "--seeds", 1, "--seed", 2, "--config", file, "--out", tmp_path / "b") == 0
    assert read(tmp_path / "b" / "results.json")["seeds"] == [2]
    for name, value in (("method", "LookSAM"), ("policy", "AUSampling"), ("alpha", 0.5), ("sync_perturbation", True)):
        file = toml(tmp_path / "mine.toml", **FEW, **{name: value})
        assert run("compare", "sgd", "--seeds", 1, "--config", file, "--out", tmp_path / "c") == 2
        said = capsys.readouterr().err
        assert f"{name} is {value!r}, but this command sets it itself. Leave it out." in said


REFUSED = [
    ("a.toml", "lr = 0.1\nnonsense = 3", '"nonsense"'),
    ("a.json", '{"lr": "0.1"}', "lr is '0.1'"),
    ("a.json", '{"epochs": 1.5}', "epochs is 1.5"),
    ("a.json", '{"lr": null}', "lr is None"),
    ("a.json", '{"lr": -1}', "lr is -1"),
    ("a.json", '{"nonfinite": "stop"}', '"skip", "raise" or "ignore"'),
    ("a.json", "[1]", "not a table of settings"),
    ("a.json", "[" * 100_000, "is not JSON"),
    ("a.toml", "lr 0.1", "is not TOML"),
    ("a.yaml", "lr: 0.1", ".toml or .json"),
    ("none.toml", None, "cannot be read"),
]


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_what_is_no_settings_is_refused(tmp_path, capsys, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    assert run("train", "--config", tmp_path / name, "--out", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


def test_a_pipe_is_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.toml")
    assert run("train", "--config", tmp_path / "pipe.toml", "--out", tmp_path / "run") == 2
    assert "pipe.toml is not a regular file" in capsys.readouterr().err


def test_every_setting_can_be_in_a_file(tmp_path):
    from dataclasses import asdict

    from ausam_lab.cli.settings import read as settings_of

    (tmp_path / "all.json").write_text(json.dumps(asdict(Config())))
    assert settings_of(tmp_path / "all.json") == asdict(Config())
