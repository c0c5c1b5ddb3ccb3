"""Damage and command lines drawn at random: a sentence or the same figures, never a traceback and never wrong ones.

AUSAM_NIGHTLY=1 draws the numbers of docs/faults.md; without it there are fewer.
"""

import collections
import json
import os
import random
import shutil

import pytest

from ausam.lab.cli.main import main
from tests.lab.helpers import run
from tests.reliability.test_faults import begun, outcome

NIGHTLY = bool(os.environ.get("AUSAM_NIGHTLY"))
FLIPS, LINES = (200, 500) if NIGHTLY else (20, 60)
FEW = ["--epochs", "3", "--train-size", "128", "--test-size", "50", "--threads", "1"]


def test_flipped_bits(tmp_path, capsys):
    """One bit of one file of a run, ended or not: what --resume then leaves is the undisturbed outcome, or exit 2."""
    argv = ["train", "--policy", "ausampling", *FEW, "--resume", "--out"]
    assert run(*argv, tmp_path / "ended") == 0
    begun(tmp_path / "begun")
    good = outcome(tmp_path / "ended")
    rng, count = random.Random(5), collections.Counter()
    for i in range(FLIPS):
        kind = ("ended", "begun")[i % 2]
        out = tmp_path / f"{kind}-{i}"
        shutil.copytree(tmp_path / kind, out)
        path = rng.choice(sorted(p for p in out.iterdir() if p.name != ".lock"))
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(data))
        code = run(*argv, out)
        assert code in (0, 2), path
        assert "Traceback" not in capsys.readouterr().err
        if code == 0:
            assert outcome(out) == good, path
        count[kind, path.name.partition("-")[0], {0: "mended or untouched", 2: "refused"}[code]] += 1
        shutil.rmtree(out)
    assert sum(count.values()) == FLIPS
    with capsys.disabled():
        print(f"\n{FLIPS} flipped bits:", json.dumps({" ".join(k): v for k, v in sorted(count.items())}))  # noqa: T201


VALUES = ["0", "-1", "1", "0.5", "1e999", "nan", "inf", "-inf", "", "x", "100000000000000000000", "sam", "full", "cpu"]
VALUES += [
    "sys:exit",
    ":",
    "a:",
    "folder:/nowhere",
    "hf:/nowhere",
    "x.py:y",
    "SAM(rho=1e999)",
    "UCB(period=1e999)",
    "\x00",
]
NAMES = ["data", "label-noise", "train-size", "test-size", "augment", "workers", "model", "quantize", "init", "method"]
NAMES += ["rho", "policy", "alpha", "s-min", "s-max", "ramp", "batch-size", "lr", "lr-steps", "momentum", "base"]
NAMES += [
    "weight-decay",
    "label-smoothing",
    "seed",
    "memory-format",
    "threads",
    "device",
    "timeout",
    "seeds",
    "nonsense",
]

GOOD = {
    "label-noise": "0.1",
    "train-size": "32",
    "augment": "standard",
    "quantize": "4",
    "method": "asam",
    "rho": "0.1",
}
GOOD |= {"policy": "ausampling", "alpha": "0.5", "ramp": "2", "batch-size": "16", "lr": "0.01", "lr-steps": "0.5"}
GOOD |= {
    "momentum": "0.5",
    "base": "adamw",
    "weight-decay": "0",
    "label-smoothing": "0.1",
    "seed": "3",
    "device": "cpu",
}


@pytest.mark.filterwarnings("ignore:The loss or the gradient")
def test_random_command_lines(tmp_path, capsys, monkeypatch):
    """Whatever the flags are: it runs, or it ends with 1 or 2 and a sentence."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    rng, count = random.Random(6), collections.Counter()
    for _ in range(LINES):
        out = tmp_path / "out"
        line = rng.choice(
            [["train"], ["train"], ["compare", "sgd"], ["compare", rng.choice(VALUES)], ["report"], ["list"]]
        )
        names = rng.sample(NAMES, rng.randint(1, 3))
        flags = [
            x for n in names for x in (f"--{n}", GOOD[n] if n in GOOD and rng.random() < 0.7 else rng.choice(VALUES))
        ]
        if line[0] in ("train", "compare"):
            flags = [
                "--train-size",
                "64",
                "--test-size",
                "20",
                "--epochs",
                "1",
                "--threads",
                "1",
                *flags,
                "--out",
                str(out),
            ]
        line = [*line, *flags]
        try:
            code = main(line)
        except SystemExit as end:  # argparse
            code = end.code
        said = capsys.readouterr().err
        assert code in (0, 1, 2), line
        assert "Traceback" not in said, line
        assert code == 0 or said.strip(), line
        count[f"exit {code}"] += 1
        shutil.rmtree(out, ignore_errors=True)
    with capsys.disabled():
        print(f"\n{LINES} command lines:", dict(sorted(count.items())))  # noqa: T201
