"""A setting is honoured or refused, never ignored; what is refused ends with code 2, a sentence and nothing on disk."""

import argparse

import pytest
import torch

from ausam_lab.cli import settings
from ausam_lab.data.catalogue import resolve
from ausam_lab.names.expressions import canonical
from ausam_lab.training.failures import explain
from tests.lab.helpers import read, run

REFUSED = [
    (["--threads", "100000"], "[0, 1024]"),
    (["--device", "gpu"], '"gpu"'),
    (["--device", "cpu:7"], '"cpu:7"'),
    (["--data", "foldr:/x"], "No module named 'foldr'"),
    (["sgd+ausampling"], "policy that ranks by loss"),
    (["ausm-0.5"], "Did you mean ausam-0.5?"),
    (["--policy", "UCB(period=0.5)"], "period is 0.5"),
    (["--method", "SAF(gap=10000000)"], "visited at most 3 times (--epochs)"),
    (["--method", "RST(inner=SAF(gap=10000000))"], "inner is SAF"),
    (["--method", "RST(0.5)"], "inner is 0.5, which is not a method"),
    (["--method", "plain", "--replay"], "Leave out --replay"),
    (["--model", "sys:exit"], 'model "sys:exit"'),
    (["--policy", "full", "--alpha", "0.5"], "Leave out --alpha"),
    (["--method", "sam(rho=0.2)", "--rho", "0.1"], "Leave out --rho"),
    (["sgd", "--rho", "0.1"], "Leave out --rho"),
    (["--ramp", "3"], "Leave out --ramp"),
    (["--policy", "random", "--s-min", "0.1"], "Leave out --s-min"),
    (["--workers", "2"], "Use --workers 0"),
    (["ausam-0.5", "--alpha", "0.4"], "Leave out one of the two."),
    (["gsam@0.5", "--method", "gsam"], "Leave out one of the two."),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_train_refuses(tmp_path, capsys, flags, message):
    assert run("train", "--epochs", 3, *flags, "--out", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("ausam: ")
    assert message in error
    assert "Traceback" not in error
    assert not list((tmp_path / "run").glob("[!.]*"))  # at most the lock, whose name begins with a dot


@pytest.mark.parametrize("flag", ["--cpus", "--gpus"])
def test_reproduce_refuses_what_only_ray_uses(tmp_path, capsys, flag):
    assert run("reproduce", "table1", flag, 1, "--out", tmp_path / "run") == 2
    assert f"{flag} is for Ray. Use --launcher ray with it" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--method", "rst", "--rho", "0.1"], ["--policy", "random", "--alpha", "0.5"]])
def test_a_flag_with_an_effect_is_taken(flags):
    args = argparse.Namespace(**dict(zip([flags[0][2:], flags[2][2:]], [flags[1], float(flags[3])], strict=True)))
    config = resolve(**settings.given(args), train_size=64, test_size=20)
    settings.prepare(config, [config], settings.given(args))


def test_replay_draws_the_masks_of_the_first_pass_again(tmp_path, monkeypatch):
    """With a radius of 0 both passes are at w, so dropout is all that can differ: SAM is then the base alone."""
    (tmp_path / "mine_dropout.py").write_text(
        "from torch import nn\n"
        "def net(classes, channels):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64 * channels, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    few = ["--epochs", 1, "--train-size", 64, "--test-size", 20, "--threads", 1, "--model", "mine_dropout.py:net"]
    for name, flags in {
        "plain": ["--method", "plain"],
        "replay": ["--rho", 0, "--replay"],
        "other": ["--rho", 0],
    }.items():
        assert run("train", *few, *flags, "--out", name) == 0
    plain, replay, other = (read(f"{name}/result.json")["weights_sha256"] for name in ("plain", "replay", "other"))
    assert plain == replay != other


def test_a_module_that_ends_the_program_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine_script.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("train", "--data", "mine_script:data", "--out", "run") == 2
    assert "SystemExit" in capsys.readouterr().err


def test_memory_that_ran_out_is_told():
    for error in (MemoryError("no"), torch.OutOfMemoryError("CUDA out of memory.")):
        failure = explain(error)
        assert failure is not None
        assert "--batch-size" in failure.text
        assert not failure.misuse
    assert explain(RuntimeError("else")) is None


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("policy", "full", "Full"),
        ("policy", " Full() ", "Full"),
        ("policy", "ausampling(ramp=2,alpha=.5)", "AUSampling(alpha=0.5, ramp=2)"),
        ("policy", "infobatch(on='first')", "InfoBatch(on='first')"),
        ("method", "LOOKSAM(k = 10)", "LookSAM(k=10)"),
        ("method", "aesam(inner=looksam(k=3))", "AESAM(inner=LookSAM(k=3))"),
        ("method", "rst(sam())", "RST(inner=SAM)"),
    ],
)
def test_one_way_of_writing(kind, text, expected):
    assert canonical(kind, text) == expected == canonical(kind, expected)


def test_resume_with_nothing_there_says_that_it_begins(tmp_path, capsys):
    few = ["--epochs", 1, "--train-size", 64, "--test-size", 20, "--threads", 1, "--out", tmp_path / "run", "--resume"]
    line = f"{tmp_path / 'run'} has no run to resume, so a new one starts."
    assert run("train", *few) == 0
    assert line in capsys.readouterr().err.splitlines()
    assert run("train", *few) == 0
    assert line not in capsys.readouterr().err
