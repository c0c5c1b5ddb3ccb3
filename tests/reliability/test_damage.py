"""Broken data of the user's, files that were damaged, and files that somebody made to do harm."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.lab.helpers import run
from tests.reliability.test_kills import outcome

FEW = ["--epochs", "2", "--train-size", "128", "--test-size", "50", "--threads", "1"]


def said(capsys):
    """The last line of standard error."""
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return text.splitlines()[-1]


# -- data of the user's own --------------------------------------------------------------------------------------------

MINE = """
import os, signal
from pathlib import Path
import torch

class Rows(torch.utils.data.Dataset):
    targets = [i % 3 for i in range(64)]

    def __len__(self):
        return 64

    def __getitem__(self, i):
        x = torch.randn(8, generator=torch.Generator().manual_seed(i))
        if i == 17 and Path("broken").exists() and Path("run/checkpoint-00001.pt").exists():
            x = globals()[Path("broken").read_text()](x)
        return x, i % 3

def missing(x):
    return open("17.png")

def killed(x):
    os.kill(os.getpid(), signal.SIGKILL)

def shorter(x):
    return x[:7]

def data():
    return Rows(), Rows()

def net(classes, channels):
    return torch.nn.Linear(8, 3)
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """A folder with a module of the user's, and a run of it that nothing befell."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine_faults.py").write_text(MINE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(*own("calm")) == 0
    yield folder
    sys.path.remove(str(folder))


def own(out, workers=0):
    """The command that trains on it."""
    settings = ["--epochs", 3, "--batch-size", 16, "--policy", "full", "--threads", 1, "--workers", workers]
    return ["train", "--data", "mine_faults:data", "--model", "mine_faults:net", *settings, "--out", out]


@pytest.mark.parametrize(
    ("fault", "workers", "words"),
    [
        ("missing", 0, ["Sample 17 of the training set of mine_faults:data", "'17.png'", "mine_faults.py, line 19"]),
        ("missing", 2, ["Sample 17 of the training set of mine_faults:data", "'17.png'", "mine_faults.py, line 19"]),
        ("shorter", 2, ["sample 17 of shape (7,)"]),
        ("killed", 2, ["--workers"]),
    ],
)
def test_broken_data_is_named_and_can_be_mended(mine, monkeypatch, capsys, fault, workers, words):
    monkeypatch.chdir(mine)
    Path("broken").write_text(fault)
    shutil.rmtree("run", ignore_errors=True)
    assert run(*own("run", workers)) == 1
    line = said(capsys)
    for word in (*words, "run holds the run up to epoch 1", "--resume"):
        assert word in line
    Path("broken").unlink()
    assert run(*own("run"), "--resume") == 0  # with other workers, or none
    assert outcome(Path("run")) == outcome(Path("calm")) or workers


# -- files that were damaged -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of a run that has ended."""
    out = tmp_path_factory.mktemp("ended") / "out"
    assert run("train", "--policy", "ausampling", *FEW, "--out", out) == 0
    return out


@pytest.fixture
def done(ended, tmp_path):
    """A copy of it, and its command."""
    out = tmp_path / "out"
    shutil.copytree(ended, out)
    return ["train", "--policy", "ausampling", *FEW, "--resume", "--out", out], out


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, "\0", '{"lr": "0.05"}'])
@pytest.mark.parametrize("name", ["result.json", "config.json"])
def test_an_unreadable_file_is_named(done, capsys, name, content):
    argv, out = done
    (out / name).write_text(content)
    assert run(*argv) == 2
    assert str(out / name) in said(capsys)
    assert (out / name).read_text() == content


def test_what_can_be_written_again_is(done):
    argv, out = done
    before = outcome(out)
    for name in ("result.json", "metrics.jsonl", "audit.pth"):
        (out / name).unlink()
    assert run(*argv) == 0
    assert outcome(out) == before
    assert (out / "audit.pth").exists()


def test_a_report_leaves_out_no_unreadable_run(tmp_path, capsys):
    assert run("compare", "sgd", "ausam-0.5", "--seeds", 1, *FEW, "--out", tmp_path) == 0
    path = tmp_path / "runs" / "sgd" / "seed-0" / "result.json"
    path.write_text("{")
    assert run("report", tmp_path) == 2
    assert str(path) in said(capsys)


# -- files and texts that somebody made to do harm ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["__import__('os').mkdir('executed')", "sam(rho=__import__('os').mkdir('executed'))", f"sam(rho={'(' * 5000})"],
)
def test_hostile_text_for_a_method_is_refused(tmp_path, monkeypatch, capsys, text):
    monkeypatch.chdir(tmp_path)
    assert run("train", "--method", text, *FEW, "--out", "run") == 2
    assert said(capsys).startswith("ausam: ")
    assert not list(tmp_path.iterdir())


def test_a_worker_whose_death_is_noticed_elsewhere_is_named(mine, monkeypatch, capsys):
    """torch's signal handler raises wherever the program is: here, in the audit."""
    monkeypatch.chdir(mine)
    shutil.rmtree("run", ignore_errors=True)

    def interrupted(*_):
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed. ")

    monkeypatch.setattr("ausam_lab.training.auditing.update", interrupted)
    assert run(*own("run", 0)) == 1
    assert "--workers" in said(capsys)
