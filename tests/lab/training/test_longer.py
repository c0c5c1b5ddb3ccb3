"""A run that has ended is made longer where its epochs would have been the same; where not, it says why."""

import json

import pytest

from ausam_lab.training import checkpoint
from tests.lab.helpers import read, run, without_times

FEW = ["--train-size", 128, "--test-size", 50, "--threads", 1]


def train(out, *flags):
    return run("train", *FEW, *flags, "--out", out)


@pytest.mark.parametrize("policy", ["full", "ausampling(ramp=2)"])
def test_a_run_of_constant_rate_is_extended_bit_for_bit(tmp_path, policy):
    constant = ["--lr-steps", "1", "--policy", policy]
    assert train(tmp_path / "whole", *constant, "--epochs", 4) == 0
    assert train(tmp_path / "run", *constant, "--epochs", 2) == 0
    assert read(tmp_path / "run" / "result.json")["epochs"] == 2
    assert train(tmp_path / "run", *constant, "--epochs", 4, "--resume") == 0
    one, other = read(tmp_path / "run" / "result.json"), read(tmp_path / "whole" / "result.json")
    assert one["epochs"] == 4
    assert one["weights_sha256"] == other["weights_sha256"]
    assert without_times(tmp_path / "run") == without_times(tmp_path / "whole")
    assert read(tmp_path / "run" / "config.json") == read(tmp_path / "whole" / "config.json")


def test_an_extension_that_was_killed_before_its_first_epoch_goes_on(tmp_path):
    constant = ["--lr-steps", "1"]
    assert train(tmp_path / "run", *constant, "--epochs", 1) == 0
    settings = read(tmp_path / "run" / "config.json") | {"epochs": 2}
    (tmp_path / "run" / "config.json").write_text(json.dumps(settings))  # what it had written by then
    assert train(tmp_path / "run", *constant, "--epochs", 2, "--resume") == 0
    assert read(tmp_path / "run" / "result.json")["epochs"] == 2


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (
            [],
            "its learning rate falls as a cosine over all epochs, so the 2 finished epochs would have had a different",
        ),
        (["--lr-steps", "0.5"], "its learning rate falls in steps at fractions of all epochs"),
        (["--lr-steps", "1", "--policy", "infobatch"], "InfoBatch plans over all epochs"),
        (["--lr-steps", "1", "--policy", "ausampling"], "AUSampling plans over all epochs"),  # its ramp is a fraction
        (["--lr-steps", "1", "--method", "aesam"], "AESAM plans over all epochs"),
    ],
)
def test_where_the_epochs_would_have_differed_it_says_why(tmp_path, capsys, flags, why):
    assert train(tmp_path, *flags, "--epochs", 2) == 0
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert train(tmp_path, *flags, "--epochs", 4, "--resume") == 2
    error = capsys.readouterr().err
    assert f"ausam: {tmp_path} holds another run: it has 2 epochs and cannot be changed to 4, because {why}" in error
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_run_cannot_be_made_shorter(tmp_path, capsys):
    assert train(tmp_path, "--lr-steps", "1", "--epochs", 2) == 0
    assert train(tmp_path, "--lr-steps", "1", "--epochs", 1, "--resume") == 2
    assert "it was started with 2 epochs, and a run can only be made longer" in capsys.readouterr().err


@pytest.mark.nightly
def test_names_of_checkpoints_survive_epoch_100000(tmp_path):
    assert train(tmp_path, "--epochs", 1) == 0
    saved = checkpoint.read(tmp_path / "checkpoint-00001.pt", checkpoint.KINDS)
    row = json.loads(saved["epochs"])
    rows = "".join(json.dumps({**row, "epoch": e}) + "\n" for e in range(1, 100_001))
    for epoch in (99_999, 100_000):
        text = "".join(f"{line}\n" for line in rows.splitlines()[:epoch])
        checkpoint.save(tmp_path, epoch, {**saved, "epochs": text})
    assert checkpoint.saved_epochs(tmp_path) == 100_000
    assert sorted(p.name for p in tmp_path.glob("*.pt")) == ["checkpoint-100000.pt", "checkpoint-99999.pt"]
    newest = checkpoint.load(tmp_path)
    assert newest is not None
    assert len(newest.epochs) == 100_000
