"""``--log``: every epoch once, wherever it is written and however often the run is stopped."""

import csv
import sys
import types

import pytest

from ausam_lab.training import logs
from ausam_lab.training.logs import KINDS, Logs
from ausam_lab.training.loop import train
from tests.lab.helpers import read, run

FEW = ["--epochs", 3, "--train-size", 64, "--test-size", 20, "--threads", 1]


def stopped_after(monkeypatch, epochs, *argv):
    """The exit code of a command whose run is stopped after so many epochs."""

    def stopping(*args, **how):
        rows = train(*args, **how)
        for _ in range(epochs):
            yield next(rows)
        rows.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ausam_lab.cli.commands.train", stopping)
        return run(*argv)


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_per_epoch_also_after_a_resume(tmp_path, monkeypatch):
    argv = ["train", *FEW, "--log", "csv", "--out", tmp_path / "run"]
    assert stopped_after(monkeypatch, 2, *argv) == 130
    assert [row["epoch"] for row in table(tmp_path / "run" / "metrics.csv")] == ["1", "2"]
    for _ in range(2):  # the second finds the run finished
        assert run(*argv, "--resume") == 0
        rows = table(tmp_path / "run" / "metrics.csv")
        assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert float(rows[-1]["test_accuracy"]) == read(tmp_path / "run" / "result.json")["test"]["value"]
    (tmp_path / "run" / "metrics.csv").unlink()
    assert run(*argv, "--resume") == 0
    assert table(tmp_path / "run" / "metrics.csv") == rows


class Service:
    """What wandb looks like to us; it keeps what it is told, as (run, step, figures)."""

    def __init__(self):
        self.opened, self.rows, self.closed = [], [], []

    # wandb

    def wandb(self):
        module = types.ModuleType("wandb")
        module.errors = types.SimpleNamespace(Error=type("Error", (Exception,), {}))
        module.Settings = lambda **how: how
        module.init = self.init
        module.__spec__ = types.SimpleNamespace()
        return module

    def init(self, *, id, **how):  # noqa: A002
        self.opened.append((id, how))
        return types.SimpleNamespace(
            log=lambda figures, step: self.rows.append((id, step, dict(figures))),
            finish=lambda exit_code: self.closed.append((id, exit_code)),
        )


@pytest.fixture
def service(monkeypatch):
    made = Service()
    monkeypatch.setitem(sys.modules, "wandb", made.wandb())
    return made


def test_a_service_gets_each_epoch_once_and_the_run_stays_one(service, tmp_path, monkeypatch):
    argv = ["train", *FEW, "--log", "wandb", "--out", tmp_path / "run"]
    assert stopped_after(monkeypatch, 2, *argv) == 130
    assert run(*argv, "--resume") == 0
    names = {name for name, _ in service.opened}
    assert len(service.opened) == 2
    assert len(names) == 1
    assert [step for _, step, row in service.rows if "lr" in row] == [1, 2, 3]
    assert [code for _, code in service.closed] == [1, 0]
    figures = {k: v for _, step, row in service.rows if step == 3 for k, v in row.items()}
    assert figures["test_accuracy"] == read(tmp_path / "run" / "result.json")["test"]["value"]
    assert run(*argv, "--resume") == 0  # it is finished, and all of it is there
    assert len(service.opened) == 2


def test_a_log_that_is_asked_for_later_gets_the_epochs_of_before(service, tmp_path, monkeypatch):
    argv = ["train", *FEW, "--out", tmp_path / "run"]
    assert stopped_after(monkeypatch, 2, *argv) == 130
    assert run(*argv, "--resume", "--log", "wandb") == 0
    assert [step for _, step, row in service.rows if "lr" in row] == [1, 2, 3]


def test_runs_of_a_comparison_are_apart(service, tmp_path):
    assert run("compare", "sgd", "sam", "--seeds", 1, *FEW, "--log", "wandb", "--out", tmp_path / "out") == 0
    assert {how["name"] for _, how in service.opened} == {"sgd/seed-0", "sam/seed-0"}
    steps = [(name, step) for name, step, row in service.rows if "lr" in row]
    assert sorted(steps) == sorted((name, step) for name, _ in service.opened for step in (1, 2, 3))


def test_a_service_that_refuses_is_a_sentence_before_the_first_step(tmp_path, monkeypatch, capsys):
    service = Service()
    module = service.wandb()

    def refusing(**how):
        raise module.errors.Error("api_key not configured (no-tty).")

    module.init = refusing
    monkeypatch.setitem(sys.modules, "wandb", module)
    assert run("train", *FEW, "--log", "wandb", "--out", tmp_path / "run") == 2
    assert (
        "ausam: wandb refuses: api_key not configured (no-tty). Use wandb login, or set WANDB_MODE=offline."
        in capsys.readouterr().err
    )
    assert not list((tmp_path / "run").glob("checkpoint-*"))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "csv"])
@pytest.mark.parametrize("command", [["train"], ["compare", "sgd"], ["reproduce", "table1"]], ids=lambda c: c[0])
def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, capsys, command, kind):
    monkeypatch.setattr(logs.importlib.util, "find_spec", lambda name: None)
    assert run(*command, "--log", kind, "--out", tmp_path / "out") == 2
    assert f"not installed: pip install {kind}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_was_opened_is_closed_if_another_fails(tmp_path, monkeypatch):
    from ausam_lab.config import Config

    closed = []

    class Good:
        last_epoch = 0

        def close(self, ended):
            closed.append(ended)

    def bad(*_):
        raise ValueError("no")

    monkeypatch.setitem(KINDS, "csv", lambda *_: Good())
    monkeypatch.setitem(KINDS, "wandb", bad)
    with pytest.raises(ValueError, match="no"), Logs(("csv", "wandb"), tmp_path).opened(Config(), tmp_path, []):
        pass
    assert closed == [False]


# -- the packages themselves -------------------------------------------------------------------------------------------


def wandb_records(path):
    """What an offline run of wandb's holds: LevelDB's log format after seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, whole, at = path.read_bytes(), b"", 7
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(whole)
            whole = b""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.nightly
def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    wandb.teardown()  # it reads the environment once per process, and another test may have used it
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    argv = ["compare", "sgd", "sam", "--seeds", 1, *FEW, "--log", "wandb", "--out", tmp_path / "out"]
    assert run(*argv) == 0
    steps = {}
    for path in (tmp_path / "out" / "wandb").glob("offline-run-*/run-*.wandb"):
        steps[path.stem] = [record.history.step.num for record in wandb_records(path) if record.HasField("history")]
    assert [sorted(step) for step in steps.values()] == [[1, 2, 3]] * 2
    files = len(list((tmp_path / "out" / "wandb").iterdir()))
    assert run(*argv) == 0
    assert len(list((tmp_path / "out" / "wandb").iterdir())) == files  # nothing is left to say
