"""Kills, signals, full disks and two processes on one folder: what was written is whole, and the run ends the same."""

import errno
import json
import os
import resource
import signal
import sys

import pytest
import torch

from ausam_lab.cli import train as cli_train
from ausam_lab.cli.main import main
from ausam_lab.experiments import compare, run_cells
from ausam_lab.paper import recipe
from ausam_lab.records.files import file_lock
from ausam_lab.training import run_folder
from ausam_lab.training.loop import train
from tests.lab.helpers import micro_recipe, run
from tests.processes import forked

MICRO = micro_recipe('{ name = "sgd" }', '{ name = "ausam-0.5" }')
SMALL = ["--train-size", "192", "--test-size", "100", "--threads", "1"]
TIMES = ("seconds", "cpu_seconds", "images_per_second", "train_seconds")


def command(out):
    """A run that keeps everything that can be lost: memory of the method, scores, a ramp, dropout-free but drawn."""
    line = ["train", "--method", "looksam(k=3)", "--policy", "ausampling", "--ramp", "3", "--epochs", "5", *SMALL]
    return [*line, "--resume", "--out", str(out)]


def outcome(folder):
    """Everything a run leaves, but times."""
    result = json.loads((folder / "result.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == result["epochs"]
    del result["environment"]["commit"]  # somebody may commit while the tests run
    return [{k: v for k, v in record.items() if k not in TIMES} for record in (result, *rows)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run(*command(out)) == 0
    return outcome(out)


# -- processes that stop themselves ------------------------------------------------------------------------------------


def half_written(name, then):
    """An ``os.fsync`` that does this where a temporary file with this in its name is half written."""
    original = os.fsync

    def fsync(fd):
        place = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
        if place.endswith(".tmp") and name in place:
            os.ftruncate(fd, os.fstat(fd).st_size // 2)
            then()
        original(fd)

    return fsync


def victim(argv, said, step=0, write="", number=signal.SIGKILL, room=0, tables=None):
    """Run a command in a process that stops itself by a signal: after so many steps, or half-way through a write.

    Arguments:
        argv: the command.
        said: the file that standard error goes to.
        step: the number of steps; 0: none.
        write: a part of the name of the file; empty: none.
        number: the signal.
        room: in place of the signal, no file can be larger than this from that step on.
        tables: the folder of recipes.
    """
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  (the process's own)
    left = [step]
    if write:
        os.fsync = half_written(write, lambda: os.kill(os.getpid(), number))

    def on_step(_):
        left[0] -= 1
        if left[0] == 0 and room:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        elif left[0] == 0:
            os.kill(os.getpid(), number)

    def stepping(*args, **how):
        return train(*args, **{**how, "on_step": on_step})

    cli_train.train = compare.train = run_cells.train = stepping
    if tables is not None:
        recipe.FOLDER = tables
    code = main(argv)
    sys.stderr.flush()
    os._exit(code)


def life(argv, said, **how):
    """The exit code of such a process, negative for the signal that killed it, and what it said."""
    one = forked().Process(target=victim, args=(argv, said), kwargs=how)
    one.start()
    one.join()
    return one.exitcode, [line for line in said.read_text().splitlines() if line.startswith("ausam: ")]


KILLS = [{"write": "config.json"}, {"step": 4}, {"write": "checkpoint-00002"}, {"step": 3}, {"write": "metrics.jsonl"}]
KILLS += [{"write": "checkpoint-00005"}, {"write": "result.json"}]


def test_a_run_that_was_killed_again_and_again_ends_as_the_undisturbed_one(undisturbed, tmp_path):
    """SIGKILL after steps, and in the middle of every kind of file."""
    out = tmp_path / "run"
    for kill in KILLS:
        code, _ = life(command(out), tmp_path / "said", **kill)
        assert code == -signal.SIGKILL, kill
        for path in out.glob("checkpoint-*.pt"):
            torch.load(path, weights_only=True)  # whole
        if "write" in kill:  # it died with a part of that file on disk, under another name
            (part,) = out.glob(".*.tmp")
            assert part.name.startswith(f".{kill['write']}")
    assert run(*command(out)) == 0
    assert outcome(out) == undisturbed
    assert not list(out.glob(".*.tmp"))
    assert len(list(out.glob("checkpoint-*.pt"))) == 2


@pytest.mark.parametrize(
    ("how", "code", "word"),
    [
        ({"step": 8, "number": signal.SIGTERM}, 143, "terminated"),
        ({"step": 8, "number": signal.SIGINT}, 130, "interrupted"),
        ({"write": "checkpoint-00002", "number": signal.SIGINT}, 130, "interrupted"),
        ({"step": 8, "room": 30_000}, 1, "ulimit -f"),
    ],
)
def test_a_stopped_run_says_how_to_continue_and_ends_the_same(undisturbed, tmp_path, how, code, word):
    out = tmp_path / "run"
    ended, (said,) = life(command(out), tmp_path / "said", **how)
    assert ended == code
    assert word in said
    assert "--resume" in said
    epochs = len(run_folder.epochs(out))
    assert f"up to epoch {epochs}" in said if epochs else "No epoch" in said
    assert not list(out.glob(".*.tmp"))
    assert run(*command(out)) == 0
    assert outcome(out) == undisturbed


@pytest.mark.parametrize("name", ["compare", "reproduce"])
def test_a_killed_comparison_or_table_goes_on(tmp_path, monkeypatch, name):
    (tmp_path / "micro.toml").write_text(MICRO)
    monkeypatch.setattr(recipe, "FOLDER", tmp_path)
    line = {
        "compare": ["compare", "sgd", "ausam-0.5", "--epochs", "2", "--seeds", "1", *SMALL],
        "reproduce": ["reproduce", "micro", "--seeds", "1", "--threads", "1"],
    }[name]
    for kill in ({"step": 5}, {"write": "checkpoint-00002"}, {"write": "results.json"}):
        argv = [*line, "--out", str(tmp_path / "killed")]
        assert life(argv, tmp_path / "said", tables=tmp_path, **kill)[0] == -signal.SIGKILL
    for folder in ("killed", "calm"):
        assert run(*line, "--out", tmp_path / folder) == 0
    calm = {p.relative_to(tmp_path / "calm"): p.parent for p in (tmp_path / "calm").rglob("result.json")}
    assert len(calm) == 2
    for path, folder in calm.items():
        assert outcome((tmp_path / "killed" / path).parent) == outcome(folder)


# -- two processes, one folder -----------------------------------------------------------------------------------------


def hold_lock(path, ready, done):
    with file_lock(path) as mine:
        assert mine
        ready.set()
        done.wait(600)


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_second_process_on_a_folder_is_refused(tmp_path, capsys, command):
    out = tmp_path / "out"
    locked = out if command == "train" else out / "runs" / "sgd" / "seed-0"
    argv = ["train", "--method", "plain"] if command == "train" else ["compare", "sgd", "--seeds", 1]
    argv += [*SMALL, "--epochs", 1, "--out", out]
    locked.mkdir(parents=True)
    (locked / ".config.json.1.tmp").write_text("the other's")
    context = forked()
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold_lock, args=(locked / ".lock", ready, done))
    other.start()
    try:
        assert ready.wait(120)
        assert run(*argv) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert str(locked) in line
        assert f"remove {locked}/.lock" in line
        assert (locked / ".config.json.1.tmp").exists()
    finally:
        done.set()
        other.join()
    assert other.exitcode == 0
    assert run(*argv) == 0
    assert not list(locked.glob(".*.tmp"))


# -- full disks and places that cannot be written ----------------------------------------------------------------------


def failing(monkeypatch, name, number):
    """Let writes of files with this in their name fail half-way."""

    def fail():
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", half_written(name, fail))


@pytest.mark.parametrize(("name", "epochs"), [("checkpoint-00003", 2), ("result.json", 5), ("", 0)])
def test_after_a_full_disk_the_run_goes_on(undisturbed, tmp_path, monkeypatch, capsys, name, epochs):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        failing(patch, name, errno.ENOSPC)
        assert run(*command(out)) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{out}/{name}" in said
    assert "Free some space" in said
    assert f"up to epoch {epochs}" in said if epochs else "No epoch was finished" in said
    assert not list(out.glob(".*.tmp"))
    assert out.exists() == bool(name)  # a disk that is full at the first write leaves nothing behind
    assert run(*command(out)) == 0
    assert outcome(out) == undisturbed


def test_a_full_disk_stops_a_comparison_at_once(tmp_path, monkeypatch, capsys):
    argv = ["compare", "sgd", "sam", "--seeds", 1, "--epochs", 2, *SMALL, "--out", tmp_path / "out"]
    with monkeypatch.context() as patch:
        failing(patch, "checkpoint-00002", errno.EDQUOT)
        assert run(*argv) == 1
    assert "Run the same command" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.rglob("result.json"))
    assert run(*argv) == 0
    assert len(list(tmp_path.rglob("result.json"))) == 2


def test_a_place_that_cannot_be_written_is_a_mistake_of_use(tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        failing(patch, "", errno.EACCES)
        assert run(*command(tmp_path / "run")) == 2
    assert "Choose another --out" in capsys.readouterr().err
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        assert run(*command(out)) == 2
        assert "Choose another --out" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"
