"""Command lines drawn at random: they run, or end with a sentence. The test prints its counts."""

import collections
import json
import random
import shutil

import pytest

from ausam_lab.cli.main import main
from tests.lab.helpers import run

LINES = 500
FEW = ["--train-size", "128", "--test-size", "50", "--threads", "1"]


def said(count, what, capsys):
    with capsys.disabled():
        shown = {" ".join(key): n for key, n in sorted(count.items())}
        print(f"\n{sum(count.values())} {what}:", json.dumps(shown))  # noqa: T201


ODD = ["0", "-1", "1", "0.5", "1e999", "nan", "inf", "-inf", "", "x", "100000000000000000000", "sam", "full", "cpu"]
ODD += [
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

# Flags of a run with values that can be meant. Not every two of them go together: that is for the program to say.
MEANT = {
    "label-noise": ["0", "0.1", "0.4"],
    "augment": ["none", "standard", "cutout"],
    "model": ["resnet-tiny", "resnet-small-w8"],
    "quantize": ["0", "4"],
    "method": ["plain", "sam", "asam", "gsam", "looksam(k=3)", "esam", "rst", "aesam", "mesa(start=1)", "momentumsam"],
    "policy": ["full", "random", "ausampling", "infobatch", "toploss", "ucb", "epsilongreedy"],
    "batch-size": ["8", "16", "1000"],
    "lr": ["0.01", "0.5", "1e3"],
    "lr-steps": ["0.5", "1", "0.2,0.8"],
    "momentum": ["0", "0.5"],
    "base": ["sgd", "adam", "adamw"],
    "weight-decay": ["0", "0.1"],
    "label-smoothing": ["0.1"],
    "seed": ["0", "3", "123456789"],
    "device": ["cpu", "auto"],
    "memory-format": ["contiguous", "channels_last"],
    "nonfinite": ["skip", "raise", "ignore"],
    "log": ["csv"],
    "every": ["0", "1"],
    "config": ["settings.toml", "settings.json"],
}
RARE = {"rho": ["0", "0.1", "5"], "alpha": ["0.5", "1"], "ramp": ["1", "4"], "s-min": ["0.1"], "s-max": ["0.9"]}
NAMES = [*MEANT, *RARE, "data", "train-size", "test-size", "workers", "init", "threads", "timeout", "seeds", "nonsense"]
PAIRS = ["sgd", "sam", "ausam-0.5", "sam@0.5", "GSAM + AUSampling(alpha=0.3)", "sam+random", "looksam-5"]
THINGS = ["sam", "looksam", "ausampling", "digits", "resnet18", "sam@0.5x0.5", "cifar10", "infobatch", "g-rst"]


def a_line(rng, out, finished):
    """A command line: most could be meant, some cannot."""
    command = rng.choices(["train", "compare", "report", "list"], [6, 2, 1, 1])[0]
    meant = rng.random() < 0.7
    if command == "list":
        return ["list", *rng.sample([rng.choice(THINGS if meant else ODD), "--json"], rng.randint(0, 2))]
    if command == "report":
        return ["report", str(finished) if meant else rng.choice(ODD)]
    line = ["train"] if command == "train" else ["compare", *rng.sample(PAIRS if meant else [*PAIRS, *ODD], 2)]
    line += ["--train-size", "48", "--test-size", "20", "--epochs", "1", "--threads", "1", "--out", str(out)]
    line += ["--seeds", "1"] if command == "compare" else []
    values = (MEANT | RARE if rng.random() < 0.2 else MEANT) if meant else dict.fromkeys(NAMES, ODD)
    allowed = [n for n in values if command == "train" or n not in ("method", "policy", "alpha")]
    for name in rng.sample(allowed, rng.randint(1, 4)):
        line += [f"--{name}", rng.choice(values[name])]
    if command == "train":
        line += rng.choice([[], [], ["--resume"], ["--replay"]])
    return line


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:The loss or the gradient")
@pytest.mark.filterwarnings("ignore:.*has no effect")
def test_random_command_lines(tmp_path, capsys, monkeypatch):
    """Whatever the flags are: it runs, or it ends with 1 or 2 and a sentence."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.toml").write_text("lr = 0.02\nmomentum = 0.8\n")
    (tmp_path / "settings.json").write_text('{"lr": 0.02, "base": "adam"}')
    finished = tmp_path / "finished"
    assert run("compare", "sgd", "--seeds", 1, "--epochs", 1, *FEW, "--out", finished) == 0
    rng, count = random.Random(6), collections.Counter()
    for _ in range(LINES):
        out = tmp_path / "out"
        line = a_line(rng, out, finished)
        capsys.readouterr()
        try:
            code = main(line)
        except SystemExit as end:  # argparse
            code = end.code
        error = capsys.readouterr().err
        assert code in (0, 1, 2), line
        assert "Traceback" not in error, line
        assert code == 0 or "ausam" in error, line
        count[line[0], f"exit {code}"] += 1
        shutil.rmtree(out, ignore_errors=True)
    said(count, "command lines", capsys)
    ran = sum(n for (_, what), n in count.items() if what == "exit 0")
    assert ran > LINES / 2  # else they say little about what runs
