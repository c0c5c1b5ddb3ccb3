"""A run's folder may come from a stranger: the code that its settings name is not executed."""

import json
import os
import shutil

import pytest

from tests.lab.helpers import run

FEW = ["--epochs", 2, "--train-size", 64, "--test-size", 20, "--threads", 1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("trust") / "run"
    assert run("train", "sgd", *FEW, "--out", path) == 0
    return path


def naming_code(folder, tmp_path, setting, value):
    """A copy of a run's folder whose settings name its own code, that code, and the file that the code would write."""
    stranger = tmp_path / "stranger"
    shutil.copytree(folder, stranger)
    evil, done = stranger / "evil.py", tmp_path / "done"
    evil.write_text(f"open({str(done)!r}, 'w').close()\n")
    config = json.loads((stranger / "config.json").read_text())
    config[setting] = value.format(evil=evil)
    (stranger / "config.json").write_text(json.dumps(config))
    return stranger, evil, done


@pytest.mark.parametrize(
    ("command", "setting", "value"),
    [
        ("audit", "data", "{evil}:f"),
        ("diagnose", "data", "{evil}:f"),
        ("diagnose", "model", "{evil}:f"),
        ("diagnose", "method", "{evil}:C"),
        ("diagnose", "policy", "TopLoss(signal='{evil}:f')"),
    ],
)
def test_code_that_a_folder_names_is_not_executed(folder, tmp_path, capsys, command, setting, value):
    stranger, evil, done = naming_code(folder, tmp_path, setting, value)
    capsys.readouterr()
    assert run(command, stranger) == 2
    error = capsys.readouterr().err
    assert str(evil) in error
    assert "--trust" in error
    assert not done.exists()
    run(command, stranger, "--trust")
    assert done.exists()


@pytest.mark.parametrize(
    ("command", "file"),
    [("audit", "config.json"), ("audit", "audit.pth"), ("report", "results.json")],
)
def test_a_pipe_in_a_folder_is_not_waited_for(folder, tmp_path, command, file):
    stranger = tmp_path / "stranger"
    shutil.copytree(folder, stranger)
    (stranger / file).unlink(missing_ok=True)
    os.mkfifo(stranger / file)
    assert run(command, stranger) in (0, 2)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("model", "{evil}:f"),
        ("method", "{evil}:C"),
        ("method", "RST(inner='{evil}:C')"),
        ("policy", "{evil}:C"),
        ("policy", "TopLoss(signal='{evil}:f')"),
    ],
)
def test_an_audit_does_not_need_the_other_code(folder, tmp_path, setting, value):
    stranger, _, done = naming_code(folder, tmp_path, setting, value)
    assert run("audit", stranger) == 0
    assert not done.exists()
