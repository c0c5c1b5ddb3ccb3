"""What a command says before it trains, and what it calls the run afterwards."""

import pytest

from tests.lab.helpers import read, run

FEW = ["--epochs", 2, "--train-size", 64, "--test-size", 20, "--threads", 1]
DEFAULT = "digits with 20 % wrong labels (the default for this data, --label-noise 0 for none), resnet-tiny"


def test_the_first_lines(tmp_path, capsys):
    assert run("train", *FEW, "--out", tmp_path / "run") == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[0] == f"{DEFAULT}, 2 epochs, batch 64"
    assert DEFAULT not in out


def test_a_comparison_says_how_many_runs_are_left(tmp_path, capsys):
    assert run("compare", "sam", "--seeds", 1, *FEW, "--out", tmp_path) == 0
    assert capsys.readouterr().err.splitlines()[1] == "1 pair with 1 seed: 1 run, 2 epochs to do"
    assert run("compare", "sam", "sgd", "--seeds", 2, *FEW, "--out", tmp_path) == 0
    assert capsys.readouterr().err.splitlines()[1] == "2 pairs with 2 seeds: 4 runs, 6 epochs to do"


@pytest.mark.parametrize(
    ("flags", "label"),
    [
        (["ausam-0.5"], "AUSAM-0.5"),
        (["--policy", "ausampling", "--alpha", 0.7], "SAM(rho=0.2) + AUSampling(alpha=0.7)"),
        (["sam@0.5"], "SAM (half the epochs)"),
        (["--method", "sam(rho=0.3)"], "SAM(rho=0.3)"),
    ],
    ids=str,
)
def test_a_run_has_the_label_of_its_pair(tmp_path, capsys, flags, label):
    assert run("train", *flags, *FEW, "--out", tmp_path / "run") == 0
    assert capsys.readouterr().out.startswith(f"{label}: ")
    assert read(tmp_path / "run" / "result.json")["method"].startswith("SAM(rho=")
