"""The files of runs that have ended: read again or refused; and two processes on one folder."""

import csv
import io
import json
import shutil

import pytest

from ausam_lab.config import Config
from ausam_lab.experiments.compare import runs_csv
from ausam_lab.paper import recipe
from ausam_lab.records.comparison import NamedRun
from ausam_lab.records.files import file_lock
from tests.lab.helpers import a_run, run
from tests.processes import forked
from tests.reliability.test_faults import MICRO, outcome

FEW = ["--epochs", "2", "--train-size", "128", "--test-size", "50", "--threads", "1"]


def command(out):
    return ["train", "--policy", "ausampling", *FEW, "--resume", "--out", out]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of a run that has ended."""
    out = tmp_path_factory.mktemp("ended") / "out"
    assert run(*command(out)) == 0
    return out


@pytest.fixture
def done(ended, tmp_path):
    """The command of a run that has ended, and its folder."""
    out = tmp_path / "out"
    shutil.copytree(ended, out)
    return command(out), out


UNREADABLE = ["", "{", '{"format": "run"}', "\0"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("result.json", content) for content in UNREADABLE),
        *(("config.json", content) for content in UNREADABLE),
        *(("metrics.jsonl", content) for content in UNREADABLE[1:]),  # an empty file has no epochs: it says so
    ],
)
def test_an_unreadable_file_is_named_and_written_again_once_removed(done, capsys, name, content):
    argv, out = done
    before = outcome(out)
    (out / name).write_text(content)
    for line in (argv, ["report", out]) if name != "config.json" else (argv,):
        assert run(*line, *(["--log", "csv"] if line is argv else [])) == 2
        assert f"ausam: {out / name} " in (error := capsys.readouterr().err)
        assert "Remove it" in error
    (out / name).unlink()
    if name == "metrics.jsonl":
        (out / "result.json").unlink()
    assert run(*argv) == 0
    assert outcome(out) == before


def test_a_report_leaves_out_no_unreadable_run(tmp_path, capsys):
    out = tmp_path / "out"
    assert run("compare", "sgd", "ausam-0.5", "--seeds", 1, *FEW, "--out", out) == 0
    run_folder = out / "runs" / "sgd" / "seed-0"
    (run_folder / "result.json").write_text("{")
    assert run("report", out) == 2
    assert f"{run_folder}/result.json is not a JSON object. Remove it" in capsys.readouterr().err


def test_a_table_that_cannot_be_read_is_written_again(tmp_path, monkeypatch):
    (tmp_path / "micro.toml").write_text(MICRO)
    monkeypatch.setattr(recipe, "FOLDER", tmp_path)
    argv = ["reproduce", "micro", "--threads", 1, "--out", tmp_path / "out"]
    assert run(*argv) == 0
    path = tmp_path / "out" / "results.json"
    whole = json.loads(path.read_text())
    path.write_text("{")
    assert run(*argv) == 0
    assert json.loads(path.read_text()) | {"created": ""} == whole | {"created": ""}


# two processes, one folder


def hold_lock(path, ready, done):
    with file_lock(path) as mine:
        assert mine
        ready.set()
        done.wait(600)


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_second_process_on_a_folder_leaves_with_a_sentence(tmp_path, capsys, command):
    out = tmp_path / "out"
    locked = out if command == "train" else out / "runs" / "sgd" / "seed-0"
    argv = ["train", *FEW, "--method", "plain"] if command == "train" else ["compare", "sgd", "--seeds", 1, *FEW]
    locked.mkdir(parents=True)
    (locked / ".config.json.1.tmp").write_text("the other's")
    context = forked()
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold_lock, args=(locked / ".lock", ready, done))
    other.start()
    try:
        assert ready.wait(120)
        assert run(*argv, "--out", out) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith(f"ausam: Another process is working on the run in {locked}. Wait for it to end")
        assert f"remove {locked}/.lock" in line
        assert (locked / ".config.json.1.tmp").exists()
    finally:
        done.set()
        other.join()
    assert other.exitcode == 0
    assert run(*argv, "--out", out) == 0
    assert not list(locked.glob(".*.tmp"))


# other files


def test_no_cell_of_the_csv_is_a_formula():
    evil = a_run(config=Config(data="=HYPERLINK(1)", model="@x:y", lr=0.1), method="+1", policy="-1")
    (line,) = csv.DictReader(io.StringIO(runs_csv([("=1+1", NamedRun("=cmd|' /C calc'!A0", evil, ()))])))
    assert [k for k, v in line.items() if v.startswith(("=", "+", "-", "@"))] == []
    assert line["block"] == "'=1+1"
    assert line["data"] == "'=HYPERLINK(1)"
    assert line["lr"] == "0.1"
