"""The files of runs that have ended: looked at again, mended, or refused; and two processes on one folder."""

import csv
import io
import json
import tarfile
import zipfile

import pytest

from ausam.lab.config import Config
from ausam.lab.diagnose.subject import open_run
from ausam.lab.experiments import compare
from ausam.lab.problems.download import DownloadError, unpack
from ausam.lab.records.locks import file_lock
from ausam.lab.records.results import NamedRun
from ausam.lab.report.csv import csv_text
from ausam.paper import recipe
from tests.lab.helpers import a_run, run
from tests.processes import forked
from tests.reliability.test_faults import MICRO, outcome

FEW = ["--epochs", "2", "--train-size", "128", "--test-size", "50", "--threads", "1"]


def flipped(path, at, bit=0):
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(bytes(data))


def made(command, tmp_path, monkeypatch):
    """A finished folder of a command; the command that goes on with it, and the folder of one of its runs."""
    (tmp_path / "micro.toml").write_text(MICRO)
    monkeypatch.setattr(recipe, "FOLDER", tmp_path)
    out = tmp_path / "out"
    argv = {
        "train": ["train", "--policy", "ausampling", *FEW, "--resume", "--out", out],
        "compare": ["compare", "sgd", "ausam-0.5", "--seeds", 1, *FEW, "--out", out],
        "reproduce": ["reproduce", "micro", "--threads", 1, "--out", out],
    }[command]
    assert run(*argv) == 0
    return argv, max(out.rglob("result.json")).parent


@pytest.mark.parametrize("command", ["train", "compare", "reproduce"])
def test_damaged_files_of_a_finished_run_are_written_again(tmp_path, monkeypatch, caplog, command):
    argv, place = made(command, tmp_path, monkeypatch)
    whole, good = {p.name: p.read_bytes() for p in place.iterdir()}, outcome(place)
    for name in ("metrics.jsonl", "result.json", "config.json"):
        path = place / name
        digit = whole[name].index(b"0.") + 3 if name != "config.json" else whole[name].index(b'"epochs": 2') + 10
        damages = (
            lambda path=path, digit=digit: flipped(path, digit),
            lambda path=path: path.write_bytes(b""),
            lambda path=path: flipped(path, 0, 5),
            lambda path=path: path.write_bytes(path.read_bytes()[:-30]),
        )
        for damage in damages if command == "train" else damages[:2]:
            damage()
            assert path.read_bytes() != whole[name]
            caplog.clear()
            assert run(*argv) == 0
            assert f"{path}" in caplog.text
            assert outcome(place) == good
            if name != "result.json":  # that one tells the machine of now; all else is the same
                assert path.read_bytes() == whole[name]


def test_without_a_checkpoint_damaged_metrics_are_refused(tmp_path, monkeypatch, capsys):
    argv, place = made("train", tmp_path, monkeypatch)
    for path in place.glob("*.pt"):
        path.unlink()
    assert run(*argv) == 0  # whole files need none
    flipped(place / "metrics.jsonl", 50)
    for command in (argv, ["report", place]):
        assert run(*command) == 2
        assert f"{place}/metrics.jsonl is damaged, and {place} has no checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "compare", "reproduce"])
def test_a_report_mends_what_is_damaged(tmp_path, monkeypatch, capsys, caplog, command):
    _, place = made(command, tmp_path, monkeypatch)
    whole, good = {p.name: p.read_bytes() for p in place.iterdir()}, outcome(place)
    for name in ("metrics.jsonl", "result.json"):
        at = whole[name].index(b'"value"') + 10
        damages = (
            lambda path, at=at: flipped(path, at),
            lambda path: path.write_bytes(b""),
            lambda path: path.write_bytes(path.read_bytes()[:-30]),
        )
        for damage in damages if command == "train" else damages[:2]:
            damage(place / name)
            caplog.clear()
            assert run("report", tmp_path / "out") == 0
            assert f"{place / name}" in caplog.text
            assert outcome(place) == good
    assert (place / "metrics.jsonl").read_bytes() == whole["metrics.jsonl"]
    assert {p.name for p in place.glob("checkpoint-*")} == {n for n in whole if n.startswith("checkpoint-")}


def test_a_report_does_not_train(tmp_path, monkeypatch, capsys):
    _, place = made("compare", tmp_path, monkeypatch)
    newest = max(place.glob("checkpoint-*.pt"))
    newest.unlink()
    flipped(place / "result.json", (place / "result.json").read_bytes().index(b'"value"') + 10)
    assert run("report", tmp_path / "out") == 2
    assert (
        f"{place}/result.json is damaged, and {place} has no checkpoint of its last epoch to rewrite it from."
        in capsys.readouterr().err
    )
    assert not newest.exists()


@pytest.mark.parametrize("at", [0, 60, 200, -40])
def test_a_damaged_table_is_written_again(tmp_path, monkeypatch, at):
    argv, _ = made("reproduce", tmp_path, monkeypatch)
    path = tmp_path / "out" / "results.json"
    whole = json.loads(path.read_text())
    flipped(path, at)
    assert run(*argv) == 0
    changed = ("created", "digest")
    assert {k: v for k, v in json.loads(path.read_text()).items() if k not in changed} == {
        k: v for k, v in whole.items() if k not in changed
    }


def test_a_diagnosis_takes_the_settings_from_the_checkpoint(tmp_path, monkeypatch):
    """A flipped bit in config.json may leave settings that can be read, and are others."""
    _, place = made("train", tmp_path, monkeypatch)
    whole = (place / "config.json").read_bytes()
    flipped(place / "config.json", whole.index(b'"batch_size": 64') + len(b'"batch_size": 6'))
    assert json.loads((place / "config.json").read_text())["batch_size"] == 65
    assert open_run(place, 16).config.batch_size == 64


# two processes, one folder


def holding(path, ready, done):
    with file_lock(path) as mine:
        assert mine
        ready.set()
        done.wait(600)


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_second_process_on_a_folder_leaves_with_a_sentence(tmp_path, capsys, command):
    out = tmp_path / "out"
    place = out if command == "train" else out / "runs" / "sgd" / "seed-0"
    argv = ["train", *FEW, "--method", "plain"] if command == "train" else ["compare", "sgd", "--seeds", 1, *FEW]
    place.mkdir(parents=True)
    (place / ".config.json.1.tmp").write_text("the other's")
    context = forked()
    ready, done = context.Event(), context.Event()
    other = context.Process(target=holding, args=(place / ".lock", ready, done))
    other.start()
    try:
        assert ready.wait(120)
        assert run(*argv, "--out", out) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line == (
            f"ausam: Another process is working on the run in {place}. Wait for it to end, or choose another --out."
        )
        assert (place / ".config.json.1.tmp").exists()
    finally:
        done.set()
        other.join()
    assert other.exitcode == 0
    assert run(*argv, "--out", out) == 0
    assert not list(place.glob(".*.tmp"))


# other files


def test_no_cell_of_the_csv_is_a_formula():
    evil = a_run(config=Config(data="=HYPERLINK(1)", model="@x:y", lr=0.1), method="+1", policy="-1")
    (line,) = csv.DictReader(io.StringIO(csv_text([("=1+1", NamedRun("=cmd|' /C calc'!A0", evil, ()))])))
    assert [k for k, v in line.items() if v.startswith(("=", "+", "-", "@"))] == []
    assert line["block"] == "'=1+1"
    assert line["data"] == "'=HYPERLINK(1)"
    assert line["lr"] == "0.1"


ODD = ["inside/" + "x" * 300, "inside/" + "x/" * 3000 + "y"]


@pytest.mark.parametrize("name", ODD, ids=["long", "deep"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_odd_names_in_an_archive_are_our_error(tmp_path, kind, name):
    archive = tmp_path / f"a.{kind}"
    if kind == "tar":
        with tarfile.open(archive, "w") as tar:
            tar.addfile(tarfile.TarInfo(name))
    else:
        with zipfile.ZipFile(archive, "w") as content:
            content.writestr(name, "")
    with pytest.raises(DownloadError, match=r'was not unpacked: the name "inside/x.* is too long'):
        unpack(archive, tmp_path, "inside")
    assert [p.name for p in tmp_path.iterdir()] == [archive.name]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_file_that_is_also_a_folder_is_our_error(tmp_path, kind):
    archive = tmp_path / f"a.{kind}"
    names = ["inside/a", "inside/a/b"]
    if kind == "tar":
        with tarfile.open(archive, "w") as tar:
            for name in names:
                tar.addfile(tarfile.TarInfo(name))
    else:
        with zipfile.ZipFile(archive, "w") as content:
            for name in names:
                content.writestr(name, "")
    with pytest.raises(DownloadError, match="was not unpacked: a member has a name that is not valid on this system"):
        unpack(archive, tmp_path, "inside")


def test_a_comparison_of_before_metrics_had_a_digest_is_read(tmp_path, monkeypatch):
    from tests.lab.helpers import rewrite

    argv, place = made("train", tmp_path, monkeypatch)
    rewrite(place / "result.json", metrics_sha256=None)
    assert run(*argv) == 0
    assert compare.named_run("sam", place) is not None
