"""What goes wrong while a command runs: kills, signals, full disks, broken data, hostile files; and a long soak."""

import errno
import gc
import json
import multiprocessing
import os
import re
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import Subset

from ausam import METHODS, AUSampling, Full, Indexed, SelectiveBatchSampler, SharpnessAware
from ausam_lab.cli.main import main
from ausam_lab.data.loading import DataError, load_batches
from ausam_lab.paper import recipe
from ausam_lab.records import files
from ausam_lab.training import checkpoint
from ausam_lab.training.loop import train
from tests.helpers import few_or_many
from tests.lab.helpers import TESTS, micro_recipe, rewrite, run
from tests.nursery import SCALES

MICRO = micro_recipe('{ name = "sgd" }', '{ name = "ausam-0.5" }')
SMALL = ["--epochs", "3", "--train-size", "128", "--test-size", "50", "--threads", "1"]
TIMES = ("seconds", "images_per_second", "train_seconds")


def said(capsys):
    """The last line of standard error."""
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return text.splitlines()[-1]


def outcome(folder):
    """Everything a run leaves, but times."""
    result = json.loads((folder / "result.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == result["epochs"]
    del result["environment"]["commit"]  # somebody may commit while the tests run
    return [{k: v for k, v in record.items() if k not in TIMES} for record in (result, *rows)]


# kills and signals


@pytest.fixture(scope="module", params=few_or_many("few", "many"))
def nursery(request, tmp_path_factory):
    """The report of tests/nursery.py, the folder with its runs, and how many kills there were meant to be."""
    base = tmp_path_factory.mktemp("nursery")
    (base / "micro.toml").write_text(MICRO)
    command = [sys.executable, str(TESTS / "nursery.py"), str(base), request.param]
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | one)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), base, SCALES[request.param]


def test_a_run_that_was_killed_again_and_again_ends_as_the_undisturbed_one(nursery):
    report, base, scale = nursery
    *lives, last = report["killed"]
    assert report["calm"] == last["code"] == 0
    assert [life["code"] for life in lives] == [-9] * (scale.steps + scale.checkpoints + scale.metrics + 2)
    assert len({life["epochs"] for life in lives}) >= min(8, len(lives) // 3)  # spread over the run
    inside = [life for life in lives if life["at"] != "step"]
    assert sum(life["at"] == "checkpoint-" for life in inside) == scale.checkpoints
    for life in inside:  # it died with a part of that file on disk, under another name; what lay there before was swept
        assert [name.startswith(f".{life['at']}") for name in life["temporary"]] == [True]
    assert outcome(base / "killed") == outcome(base / "calm")
    assert not list((base / "killed").glob(".*.tmp"))
    assert len(list((base / "killed").glob("checkpoint-*.pt"))) == 2


def test_interrupted_and_terminated_runs_say_so_and_end_the_same(nursery):
    report, base, scale = nursery
    interrupted, terminated, twice, inside, too_large, last = report["stopped"]
    out = base / "stopped"

    def kept(life):
        return f"{out} holds the run up to epoch {life['epochs']}; run the same command with --resume to continue."

    assert (interrupted["code"], interrupted["said"]) == (130, [f"ausam: interrupted. {kept(interrupted)}"])
    assert (terminated["code"], terminated["said"]) == (143, [f"ausam: terminated. {kept(terminated)}"])
    assert (twice["code"], twice["said"]) == (130, [])  # at once: it would have lingered for a minute
    assert (inside["code"], inside["said"]) == (130, [f"ausam: interrupted. {kept(inside)}"])
    assert too_large["code"] == 1
    (line,) = too_large["said"]
    assert line.startswith(f"ausam: {out}/checkpoint-{too_large['epochs'] + 1:05d}.pt")
    assert line.endswith(
        " cannot be written: File too large. Raise the limit on the size of files (ulimit -f), or choose another "
        f"disk. {kept(too_large)}"
    )
    assert [life["temporary"] for life in report["stopped"]] == [0] * 6
    assert 0 < interrupted["epochs"] < terminated["epochs"] < inside["epochs"] < too_large["epochs"] < scale.epochs
    assert last["code"] == 0
    assert outcome(out) == outcome(base / "calm")


@pytest.mark.nightly
@pytest.mark.parametrize("nursery", ["many"], indirect=True)
def test_killed_tables_and_comparisons_go_on(nursery):
    report, base, scale = nursery
    for name, codes in report["tables"].items():
        assert codes.count(-9) == scale.writes + scale.table_steps
        assert set(codes) == {-9, 0}
        assert codes[-1] == 0
        calm = {p.relative_to(base / name / "calm"): p.parent for p in (base / name / "calm").rglob("result.json")}
        assert len(calm) == 2
        ended = [base / name / "killed", *(base / name).glob("ended-*")]
        assert len(ended) == codes.count(0)
        for path, folder in calm.items():
            for out in ended:
                assert outcome((out / path).parent) == outcome(folder)


# disks


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A run that nothing befalls."""
    out = tmp_path_factory.mktemp("calm") / "run"
    assert run("train", "--policy", "ausampling", *SMALL, "--out", out) == 0
    return out


def failing(monkeypatch, name, number):
    """Let writes of files with this in their name fail half-way."""
    original = files._put

    def put(file, data):
        if name in os.path.basename(file.name):
            file.write(data[: len(data) // 2])
            file.flush()
            raise OSError(number, os.strerror(number))
        original(file, data)

    monkeypatch.setattr(files, "_put", put)


FULL = "cannot be written: No space left on device. Free some space there."


@pytest.mark.parametrize("name", ["checkpoint-00003", "metrics.jsonl", "result.json", "config.json"])
def test_a_full_disk_is_told_and_what_was_there_goes_on(calm, tmp_path, monkeypatch, capsys, name):
    out = tmp_path / "run"
    command = ["train", "--policy", "ausampling", *SMALL, "--out", out]
    with monkeypatch.context() as patch:
        failing(patch, name, errno.ENOSPC)
        assert run(*command) == 1
    line = said(capsys)
    epochs = {"checkpoint-00003": 2, "result.json": 3}.get(name, 0)
    kept = f"{out} holds the run up to epoch {epochs}" if epochs else "No epoch was finished"
    assert line.startswith(f"ausam: {out}/{name}")
    assert line.endswith(f"{FULL} {kept}; run the same command with --resume to continue.")
    assert not list(out.glob(".*.tmp"))
    assert sorted(p.name for p in out.glob("*.pt")) == [f"checkpoint-{e:05d}.pt" for e in range(1, 4)][:epochs][-2:]
    assert run(*command, "--resume") == 0
    assert outcome(out) == outcome(calm)


def test_a_full_disk_at_the_first_write_leaves_nothing_behind(calm, tmp_path, monkeypatch, capsys):
    command = ["train", "--policy", "ausampling", *SMALL, "--out", tmp_path / "run"]
    with monkeypatch.context() as patch:
        failing(patch, "", errno.ENOSPC)
        assert run(*command) == 1
    assert not (tmp_path / "run").exists()
    assert run(*command) == 0  # without --resume: there is nothing yet
    assert outcome(tmp_path / "run") == outcome(calm)


def test_a_full_disk_stops_a_comparison_and_a_table(tmp_path, monkeypatch, capsys):
    (tmp_path / "micro.toml").write_text(MICRO)
    monkeypatch.setattr(recipe, "FOLDER", tmp_path)
    commands = (["compare", "sgd", "sam", "--seeds", 1, *SMALL], ["reproduce", "micro", "--threads", 1])
    for command in commands:
        out = tmp_path / command[0]
        with monkeypatch.context() as patch:
            failing(patch, "checkpoint-00002", errno.EDQUOT)
            assert run(*command, "--out", out) == 1
        line = said(capsys)
        assert "/checkpoint-00002.pt" in line
        assert line.endswith(
            " cannot be written: Disk quota exceeded. Free some space there. "
            "Finished work is kept; run the same command to continue."
        )
        assert not list(out.rglob("result.json"))
        assert run(*command, "--out", out) == 0
        assert len(list(out.rglob("result.json"))) == 2


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_place_that_cannot_be_written_is_a_mistake_of_use(tmp_path, monkeypatch, capsys, number):
    failing(monkeypatch, "", number)
    assert run("train", *SMALL, "--out", tmp_path / "run") == 2
    assert said(capsys) == (
        f"ausam: {tmp_path}/run/config.json cannot be written: {os.strerror(number)}. Choose another --out, or "
        "make it writable."
    )


def test_a_file_in_place_of_the_folder_is_a_mistake_of_use(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert run("train", *SMALL, "--out", tmp_path / "file") == 2
    assert said(capsys) == f"ausam: {tmp_path}/file is a file. Choose another --out."
    remedy = "Choose another --out, or make it writable."
    assert run("train", *SMALL, "--out", tmp_path / "file" / "run") == 2
    assert said(capsys) == f"ausam: {tmp_path}/file/run cannot be written: Not a directory. {remedy}"
    assert run("compare", "sgd", *SMALL, "--out", tmp_path / "file") == 2
    assert "cannot be written: Not a directory." in said(capsys)
    assert (tmp_path / "file").read_text() == "mine"


# folders that were damaged


def stopped(out, policy, epochs):
    """A run of these settings, stopped after so many epochs."""
    original = train

    def stopping(*args, **how):
        rows = original(*args, **how)
        for _ in range(epochs):
            yield next(rows)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ausam_lab.cli.commands.train", stopping)
        assert main(["train", "--policy", policy, *SMALL, "--out", str(out)]) == 130


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Makes a folder with a run that was stopped after so many epochs: the command that goes on with it."""
    folders = {}

    def begin(out, policy="ausampling", epochs=2):
        if (policy, epochs) not in folders:
            folders[policy, epochs] = tmp_path_factory.mktemp("begun") / "run"
            stopped(folders[policy, epochs], policy, epochs)
        shutil.copytree(folders[policy, epochs], out)
        return ["train", "--policy", policy, *SMALL, "--out", str(out), "--resume"]

    return begin


def test_files_that_were_removed_are_made_anew_from_the_checkpoint(begun, calm, tmp_path):
    out = tmp_path / "run"
    command = begun(out)
    for name in ("metrics.jsonl", "config.json"):
        (out / name).unlink()
    assert run(*command) == 0
    assert outcome(out) == outcome(calm)
    assert (out / "config.json").read_bytes() == (calm / "config.json").read_bytes()


def test_settings_from_the_checkpoint_of_another_run_are_refused(begun, tmp_path, capsys):
    out = tmp_path / "run"
    command = begun(out)
    (out / "config.json").unlink()
    assert run(*command, "--lr", 0.5) == 2
    assert f"{out} holds another run: lr 0.05 there, 0.5 here. Choose another --out" in said(capsys)
    for path in out.glob("*.pt"):
        path.unlink()
    assert run(*command) == 2
    assert said(capsys) == f"ausam: {out} is not empty, and there is no run in it. Choose another --out."


# data of the user's own

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

def crashed(x):
    os._exit(3)

def shorter(x):
    return x[:7]

def data():
    return Rows(), Rows()

def net(classes, channels):
    return torch.nn.Linear(8, 3)
"""
KEPT = "run holds the run up to epoch 1; run the same command with --resume to continue."
DIED = (
    "Usually the system killed it because memory ran out: use fewer --workers. With --workers 0, a dataset that "
    "crashes shows"
)


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
    ("fault", "workers", "message"),
    [
        ("missing", 0, r"FileNotFoundError: [Errno 2] No such file or directory: '17.png' (FILE, line 19)"),
        (
            "missing",
            2,
            r"FileNotFoundError: [Errno 2] No such file or directory: '17.png' (FILE, line 19)",
        ),
        ("shorter", 2, "Return x with one shape and one type."),
        ("killed", 2, DIED),
        ("crashed", 2, DIED),
    ],
)
def test_broken_data_is_named_and_can_be_mended(mine, monkeypatch, capsys, fault, workers, message):
    monkeypatch.chdir(mine)
    Path("broken").write_text(fault)
    for path in Path("run").glob("*"):
        path.unlink()
    assert run(*own("run", workers)) == 1
    line = said(capsys)
    if fault == "missing":
        message = f"Sample 17 of the training set of mine_faults:data cannot be read: {message}. Repair it, or remove"
        message = message.replace("FILE", f"{mine}/mine_faults.py")
        assert line == f"ausam: {message} it from the dataset. {KEPT}"
    elif fault == "shorter":
        assert re.sub(r"(?<=, sample )\d+", "N", line) == (
            "ausam: Samples cannot be stacked into a batch: sample 17 of shape (7,), sample N of shape (8,). "
            f"{message} {KEPT}"
        )
    else:
        assert line.startswith("ausam: A data-loading process died: DataLoader worker (pid")
        assert line.endswith(f"{message} its error. {KEPT}")
    Path("broken").unlink()
    assert run(*own("run"), "--resume") == 0  # with other workers, or none
    mended, never = outcome(Path("run")), outcome(Path("calm"))
    assert mended == never


def test_the_number_of_a_sample_is_that_of_the_innermost_dataset():
    rows = [(torch.full((2,), float(i)), 0) for i in range(6)]
    part = Indexed(Subset(rows, [5, 3, 1]))
    (batch,) = load_batches(part, 0, "cpu", torch.Generator(), batch_size=3)
    assert (batch[0][:, 0].tolist(), batch[2].tolist()) == ([5.0, 3.0, 1.0], [0, 1, 2])
    del rows[3:]
    with pytest.raises(DataError, match=r"Sample 5 of my rows cannot be read: IndexError: list index out of range"):
        list(load_batches(part, 0, "cpu", torch.Generator(), "my rows", batch_size=3))


def test_a_sample_that_is_broken_from_the_start_is_named_too(mine, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine_sample.py").write_text(
        "class Rows:\n    def __len__(self):\n        return 9\n    def __getitem__(self, i):\n"
        "        return (__import__('torch').zeros(8), [0, 1, 2, 0][i])\ndef data():\n    return Rows(), Rows()\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run("train", "--data", "mine_sample:data", "--model", "mine_faults:net", "--out", "run") == 1
    assert said(capsys) == (
        "ausam: Sample 4 of the training set of mine_sample:data cannot be read: IndexError: list index out of range "
        f"({tmp_path}/mine_sample.py, line 5). Repair it, or remove it from the dataset. No epoch was finished; run "
        "the same command with --resume to continue."
    )
    sys.path.remove(str(tmp_path))


# hostile files

REMEDY = "Remove that file; --resume then uses the previous one."


def forged(out, **changes):
    """The newest checkpoint in a folder with these entries changed."""
    path = max(out.glob("checkpoint-*.pt"))
    content = torch.load(path, weights_only=True)
    content |= {k: v(content[k]) if callable(v) else v for k, v in changes.items()}
    return checkpoint.save(out, content.pop("epoch", 2), content)


def test_a_checkpoint_of_another_run_is_refused(begun, calm, tmp_path, capsys):
    command = begun(tmp_path / "run", epochs=1)
    begun(tmp_path / "other", policy="full")
    there = max((tmp_path / "other").glob("checkpoint-*.pt"))
    newest = tmp_path / "run" / there.name
    newest.write_bytes(there.read_bytes())
    assert run(*command) == 2
    assert said(capsys) == f"ausam: {newest} belongs to another run: policy 'Full' there, 'AUSampling' here. {REMEDY}"
    newest.unlink()
    assert run(*command) == 0
    assert outcome(tmp_path / "run") == outcome(calm)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {}}, "Error(s) in loading state_dict for ResNet: Missing key(s) in state_dict: "),
        (
            {"model": lambda model: {k: v.new_zeros(2, 2) for k, v in model.items()}},
            "Error(s) in loading state_dict for ResNet: size mismatch for features.0.weight: copying a param",
        ),
        (
            {"optimizer": lambda state: {**state, "param_groups": []}},
            "its optimizer has 0 parameter groups, not 1",
        ),
        ({"sampler": {}}, ""),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(begun, calm, tmp_path, capsys, changes, message):
    out = tmp_path / "run"
    command = begun(out)
    path = forged(out, **changes)
    assert run(*command) == 2
    line = said(capsys)
    assert line.startswith(f"ausam: {path} does not fit this run: {message}")
    assert line.endswith(REMEDY)
    path.unlink()
    assert run(*command) == 0
    assert outcome(out) == outcome(calm)


def last_row(text, **changes):
    *rows, last = text.splitlines()
    return "\n".join([*rows, json.dumps(json.loads(last) | changes)]) + "\n"


NONSENSE = [
    ({"model": 7}, "its model is 7"),
    ({"optimizer": None}, "its optimizer is None"),
    ({"sampler": None}, "its sampler is None"),
    ({"random": None}, "its random is None"),
    ({"others": 3}, "its others is 3"),
    ({"config": 3}, "its config is 3"),
    ({"config": "{}}"}, "Extra data"),
    ({"config": '{"lr": "fast"}'}, "lr is 'fast'"),
    ({"seconds": "x"}, "its seconds is 'x'"),
    ({"epochs": "[[[["}, "line 1: Expecting value"),
    ({"epochs": 3}, "its epochs is 3"),
    ({"epochs": "null\nnull\n"}, "line 1: it is None"),
    ({"epochs": ""}, "it should hold 2 epochs, but holds 0"),
    ({"epochs": lambda text: last_row(text, seconds="x")}, "line 2: seconds is 'x'"),
    ({"epoch": 3}, "it should hold 3 epochs, but holds 2"),
]


@pytest.mark.parametrize(("changes", "message"), NONSENSE)
def test_a_checkpoint_with_nonsense_inside_is_passed_over(begun, calm, tmp_path, caplog, changes, message):
    out = tmp_path / "run"
    command = begun(out)
    path = forged(out, **changes)
    assert run(*command) == 0
    assert f"{path} is damaged ({message}" in caplog.text
    assert outcome(out) == outcome(calm)


@pytest.mark.parametrize("content", [[], {}, torch.zeros(3), {"model": {}}, "text"])
def test_a_checkpoint_of_something_else_is_passed_over(begun, calm, tmp_path, caplog, content):
    out = tmp_path / "run"
    command = begun(out)
    path = checkpoint.save(out, 3, content)
    assert run(*command) == 0
    assert f"{path} is damaged (it holds something else); using the previous one." in caplog.messages
    assert outcome(out) == outcome(calm)


HOSTILE = {
    "list": "[1, 2]",
    "number": "1e999",
    "text": '"<script>"',
    "nested": "[" * 100_000,
    "nested object": '{"lr": ' * 50_000,
    "digits": '{"lr": ' + "9" * 5_000 + "}",
    "binary": "\x00\x01",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_json_that_is_no_record_is_refused(tmp_path, capsys, text):
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.json").write_text(text)
    assert files.read_json(out / "config.json") is None
    assert run("train", *SMALL, "--out", out, "--resume") == 2
    assert said(capsys).startswith(f"ausam: {out}/config.json is not readable: it is not a JSON object. Remove it")
    assert (out / "config.json").read_text() == text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": "0.05"}, "lr is '0.05'"),
        ({"epochs": [3] * 1000}, f"epochs is {str([3] * 1000)[:80]}"),
        ({"seed": 1e300}, "seed is 1e+300"),
        ({"data": "../../etc/passwd"}, "data '../../etc/passwd' there, 'digits' here"),
        ({"model": "os:system"}, "model 'os:system' there, 'resnet-tiny' here"),
        ({"data": "\x1b[31m"}, r"data '\x1b[31m' there, 'digits' here"),
        ({"__class__": "x"}, "__class__ is not known"),
    ],
)
def test_a_hostile_config_is_another_run(calm, tmp_path, capsys, changes, message):
    (tmp_path / "config.json").write_text(json.dumps(json.loads((calm / "config.json").read_text()) | changes))
    assert run("train", "--policy", "ausampling", *SMALL, "--out", tmp_path, "--resume") == 2
    assert f": {message}. " in (line := said(capsys))
    assert "choose another --out" in line.lower()
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').mkdir('executed')",
        "sam(rho=__import__('os').mkdir('executed'))",
        "sam(**__import__('os').environ)",
        "sam(rho=[x for x in ()])",
        "sam(rho='0.1')",
        "rst(inner=__import__('os'))",
        f"sam(rho={'(' * 5000})",
        f"sam(rho={'-' * 5000}1)",
        f"{'rst(inner=' * 500}sam(){')' * 500}",
        "sam\x00",
        "",
    ],
    ids=lambda text: text[:30],
)
def test_hostile_text_for_a_method_is_refused(tmp_path, monkeypatch, capsys, text):
    monkeypatch.chdir(tmp_path)
    assert run("train", "--method", text, *SMALL, "--out", "run") == 2
    assert said(capsys).startswith("ausam: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", ""])
def test_a_path_is_no_table(tmp_path, capsys, name):
    assert run("reproduce", name, "--out", tmp_path / "out") == 2
    assert said(capsys).startswith(f'ausam: There is no table "{name}".')


@pytest.mark.parametrize(
    "old",
    [
        {},
        {"format": "table", "version": 1, "table": "../../etc/passwd", "scale": "small", "seeds": [0], "command": ""},
        {"format": "table", "version": 1, "table": ["x"], "scale": "small"},
        {"format": "comparison", "version": 1, "rows": 3},
        {"format": "comparison", "version": 1, "rows": [[]]},
        {"format": "comparison", "version": 1, "config": {"__class__": "x"}},
        {"format": ["comparison"], "version": {}},
    ],
    ids=json.dumps,
)
def test_hostile_results_are_refused(calm, tmp_path, capsys, old):
    out = tmp_path / "results"
    (out / "runs" / "sam" / "seed-0").mkdir(parents=True)
    for name in ("result.json", "metrics.jsonl"):
        (out / "runs" / "sam" / "seed-0" / name).write_bytes((calm / name).read_bytes())
    (out / "results.json").write_text(json.dumps(old))
    assert run("report", out) == 2
    assert said(capsys).startswith(f"ausam: {out}/results.json ")
    assert not (out / "report.html").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test": {"value": "99"}}, "test.value is '99'"),
        ({"test": {"value": float("inf")}}, "value is inf"),
        ({"train_seconds": 1e300}, "train_seconds is 1e+300"),
        ({"environment": []}, "environment is []"),
        ({"seed": None}, "seed is None"),
    ],
)
def test_a_hostile_result_is_refused(calm, tmp_path, capsys, changes, message):
    (tmp_path / "result.json").write_bytes((calm / "result.json").read_bytes())
    rewrite(tmp_path / "result.json", **changes)
    assert run("report", tmp_path) == 2
    line = said(capsys)
    assert line.startswith(f"ausam: {tmp_path}/result.json is not in ausam's format: ")
    assert message in line
    assert "Remove it" in line


def test_markup_in_a_result_is_shown_as_text(calm, tmp_path, capsys):
    evil = "<script>alert(1)</script>"
    result = json.loads((calm / "result.json").read_text())
    result["environment"]["hardware"] |= {"cpu": evil, "device": evil}
    result["environment"]["commit"] = evil
    result["config"] |= {"data": evil, "model": evil}
    (tmp_path / "result.json").write_text(json.dumps(result))
    rewrite(tmp_path / "result.json", method=evil, policy=evil, pair=evil)
    (tmp_path / "metrics.jsonl").write_bytes((calm / "metrics.jsonl").read_bytes())
    assert run("report", tmp_path) == 0
    page = (tmp_path / "report.html").read_text()
    assert evil not in page
    assert "&lt;script&gt;" in page


# a long soak

SOAK = {
    "SAM": {},
    "LookSAM": {"k": 3},
    "FriendlySAM": {},
    "MESA": {"start": 5},
    "SAF": {"start": 2, "gap": 1},
    "VSAM": {"warmup": 5},
}


@pytest.mark.nightly
def test_7000_steps_do_not_grow():
    # in a process of its own, because threads that other tests have left behind allocate too
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
        tensors, blocks, memory = alone.submit(soak).result()
    assert tensors <= 0
    assert blocks < 200
    assert memory < 8e6


def soak():
    """What 4,000 steps add: tensors, blocks of Python's memory, bytes of the process.

    After the first 3,000 of 7,000 steps nothing grows with their number.

    Each method takes 667 of the other 4,000. Were one tensor a step kept, by one method alone, 667 more would be alive,
    and as many blocks of Python's memory for any one object: no more tensors and 200 more blocks are tolerated, for
    caches that fill late. What only C++ holds, such as a graph a step, is some kilobytes of the process: 8 MB, which is
    2 kB a step, are left to its allocator. Where caches took more than that, another 4,000 steps must not.
    """
    torch.manual_seed(0)
    n, size = 256, 32
    x, y = torch.randn(n, 8), torch.randint(3, (n,))
    loops = []
    for name, settings in SOAK.items():
        layers = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
        model = torch.nn.Sequential(*layers)
        base = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        policy = AUSampling(0.5, ramp=3) if name == "SAM" else Full()
        opt = SharpnessAware(base, METHODS[name](**settings), model)
        loops.append((model, opt, SelectiveBatchSampler(n, size, policy, seed=0)))

    def steps(count):
        for model, opt, sampler in loops:

            def losses(x, y, model=model):
                z = model(x)
                return F.cross_entropy(z, y, reduction="none"), z

            left = count // len(loops)
            while left > 0:
                for chosen in sampler:
                    index = torch.tensor(chosen)
                    sampler.update(opt.backward(losses, x[index], y[index], index=index))
                    opt.step()
                    opt.zero_grad()
                    left -= 1

    def measured():
        gc.collect()
        tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return tensors, sys.getallocatedblocks(), pages * resource.getpagesize()

    steps(3000)
    measured()  # what measuring itself keeps
    for _ in range(2):
        before = measured()
        steps(4000)
        grown = [b - a for a, b in zip(before, measured(), strict=True)]
        if grown[1] < 200:
            break
    return grown
