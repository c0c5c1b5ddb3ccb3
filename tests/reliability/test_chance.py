"""Damage and command lines drawn at random: a sentence or the same figures, never a traceback and never wrong ones.

AUSAM_NIGHTLY=1 draws the numbers of docs/faults.md; without it there are fewer. Each test prints its counts.
"""

import collections
import csv
import json
import os
import random
import re
import shutil

import pytest

from ausam.lab.cli.main import main
from ausam.lab.experiments import compare
from ausam.lab.training import loop
from ausam.paper import recipe, reproduce
from tests.lab.helpers import run
from tests.reliability.test_faults import MICRO, TIMES, outcome

NIGHTLY = bool(os.environ.get("AUSAM_NIGHTLY"))
FLIPS = {"train": 80, "compare": 50, "reproduce": 50, "diagnose": 20}  # in sum 200
FLIPS = FLIPS if NIGHTLY else {"train": 12, "compare": 4, "reproduce": 4, "diagnose": 2}
LINES = 500 if NIGHTLY else 60
FEW = ["--train-size", "128", "--test-size", "50", "--threads", "1"]
COMMANDS = {
    "train": ["train", "--policy", "ausampling", "--epochs", "3", "--every", "1", *FEW, "--log", "csv", "--resume"],
    "compare": ["compare", "sgd", "ausam-0.5", "--epochs", "2", "--seeds", "1", *FEW],
    "reproduce": ["reproduce", "micro", "--threads", "1"],
}
# Figures that are of the clock, and what says when and by which digest a file was written.
CLOCK = {*TIMES, "created", "speed_of_sam", "headline", "mean_seconds", "command"}


def said(count, what, capsys):
    with capsys.disabled():
        found = {" ".join(key): n for key, n in sorted(count.items())}
        print(f"\n{sum(count.values())} {what}:", json.dumps(found))  # noqa: T201


def stopped(argv, out, monkeypatch):
    """The command, stopped after two epochs of each of its runs, or one of a comparison's."""

    def stopping(*args, **how):
        for i, row in enumerate(loop.train(*args, **how)):
            yield row
            if i:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        for module in ("ausam.lab.cli.commands", compare.__name__, reproduce.__name__):
            patch.setattr(f"{module}.train", stopping)
        assert run(*argv, "--out", out) == 130


def timeless(value):
    """A record without the figures of the clock."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in CLOCK}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def everything(out):
    """All figures in a folder: of every run, and of the tables made of them."""
    runs = {str(p.parent.relative_to(out)): outcome(p.parent) for p in sorted(out.rglob("result.json"))}
    tables = {str(p.relative_to(out)): timeless(json.loads(p.read_text())) for p in sorted(out.rglob("results.json"))}
    sheets = {str(p.relative_to(out)): _sheet(p) for p in sorted(out.rglob("*.csv"))}
    pages = sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.suffix in (".html", ".md", ".tex"))
    return runs, tables, sheets, pages


def _sheet(path):
    with path.open() as file:
        return [{k: v for k, v in row.items() if "second" not in k} for row in csv.DictReader(file)]


def kind_of(path):
    """What kind of file it is: its name without the number and digest."""
    return re.sub(r"-[0-9a-f-]{12,}(?=\.)|-\d{5,}.*(?=\.)", "", path.name)


def flip(out, rng):
    """Flip one bit of one file, of a kind drawn first: else nearly all would be checkpoints. Returns its path."""
    kinds = collections.defaultdict(list)
    for path in sorted(out.rglob("*")):
        if path.is_file() and path.stat().st_size and path.suffix != ".lock" and path.name != ".lock":
            kinds[kind_of(path)].append(path)
    path = rng.choice(kinds[rng.choice(sorted(kinds))])
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))
    return path


@pytest.mark.parametrize("command", list(COMMANDS))
def test_flipped_bits(tmp_path, monkeypatch, capsys, command):
    """One bit of one file, ended or not: the same command then leaves the undisturbed figures, or ends with code 2."""
    (tmp_path / "micro.toml").write_text(MICRO)
    monkeypatch.setattr(recipe, "FOLDER", tmp_path)
    argv = COMMANDS[command]
    stopped(argv, tmp_path / "begun", monkeypatch)
    assert run(*argv, "--out", tmp_path / "ended") == 0
    good = everything(tmp_path / "ended")
    assert len(good[0]) == (1 if command == "train" else 2)
    rng, count = random.Random(f"5 {command}"), collections.Counter()
    for i in range(FLIPS[command]):
        kind = ("ended", "begun")[i % 2]
        out = tmp_path / "out"
        shutil.copytree(tmp_path / kind, out)
        path = flip(out, rng)
        code = run(*argv, "--out", out)
        assert code in (0, 2), path
        assert "Traceback" not in capsys.readouterr().err, path
        if code == 0:
            assert everything(out) == good, path
        count[kind, kind_of(path), {0: "the same figures", 2: "refused"}[code]] += 1
        shutil.rmtree(out)
    said(count, f"flipped bits, then {command}", capsys)
    assert sum(count.values()) == FLIPS[command]


def test_flipped_bits_of_a_diagnosis(tmp_path, capsys):
    """One bit of a measurement or of the weights it was made from: the same findings, or exit 2."""
    whole = tmp_path / "whole"
    argv = ["diagnose", "--what", "lemma1,selection", "--samples", "16", "--threads", "1"]
    assert run(*COMMANDS["train"], "--out", whole) == 0
    assert run(*argv, whole) == 0
    good = timeless(json.loads((whole / "diagnosis.json").read_text()))
    rng, count = random.Random(7), collections.Counter()
    for _ in range(FLIPS["diagnose"]):
        out = tmp_path / "out"
        shutil.copytree(whole, out)
        path = flip(out, rng)
        code = run(*argv, out)
        assert code in (0, 2), path
        assert "Traceback" not in capsys.readouterr().err, path
        if code == 0:
            assert timeless(json.loads((out / "diagnosis.json").read_text())) == good, path
        count[kind_of(path), {0: "the same figures", 2: "refused"}[code]] += 1
        shutil.rmtree(out)
    said(count, "flipped bits, then diagnose", capsys)


# -- command lines -----------------------------------------------------------------------------------------------------

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
PAIRS = ["sgd", "sam", "ausam-0.5", "sam@0.5", "gsam-0.3", "sam+random", "looksam-5"]
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
