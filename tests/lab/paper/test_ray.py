"""Cells on a Ray cluster of this machine: the same results as here, failures told, and a killed driver's work kept."""

import json
import os
import signal
import subprocess
import sys
import time
from typing import ClassVar

import pytest

from ausam_lab.cli.main import main
from ausam_lab.experiments import run_cells
from ausam_lab.experiments.cells import Cell
from ausam_lab.paper import ray as launch
from ausam_lab.paper import recipe
from ausam_lab.records.files import WriteError
from ausam_lab.records.run import Epoch, Score, epochs_text
from tests.lab.helpers import micro_recipe

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.nightly  # only `make test-all` installs it

ROWS = [f'{{ name = "{name}" }}' for name in ("sgd", "sam", "ausam-0.5", "sam@2")]
MICRO = micro_recipe(*ROWS, train_size=128, test_size=50) + 'settings_of."sam@2" = { epochs = 400 }\n'
# a process of its own: Ray's threads and signal handlers stay out of pytest's
DRIVER = (
    "import sys; from pathlib import Path; from ausam_lab.paper import recipe; "
    "from ausam_lab.cli.main import main; "
    "recipe.FOLDER = Path(sys.argv[1]); sys.exit(main(sys.argv[2:]))"
)
SHORT = ["--only", "sgd", "--only", "sam", "--only", "ausam-0.5"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "micro.toml").write_text(MICRO)
    monkeypatch.setattr(recipe, "FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*more):
    return ["reproduce", "micro", "--threads", "1", "--seeds", "1", *more]


def driver(folder, *more, **how):
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    full = [sys.executable, "-c", DRIVER, str(folder), *command("--launcher", "ray", *more)]
    return subprocess.Popen(full, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)


def weights(out):
    return {p.parent.parent.name: json.loads(p.read_text())["weights_sha256"] for p in out.rglob("result.json")}


def test_ray_gives_what_the_loop_gives_and_a_failing_cell_does_not_stop_the_others(folder):
    assert main(command("--out", "here", *SHORT)) == 0
    (folder / "there" / "one" / "runs" / "sam" / "seed-0").mkdir(parents=True)
    mine = folder / "there" / "one" / "runs" / "sam" / "seed-0" / "thesis.tex"
    mine.write_text("...")
    # a cell that is killed with its driver, in the middle; its lock goes with it
    first = driver(folder, "--out", "there", "--only", "sam@2")
    begun = folder / "there" / "one" / "runs" / "sam@2" / "seed-0"
    deadline = time.monotonic() + 900
    while not list(begun.glob("checkpoint-*.pt")):
        assert first.poll() is None, first.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=900)
    assert not (begun / "result.json").exists()
    # the same folder again, with the other cells
    second = driver(folder, "--out", "there", *SHORT)
    _, err = second.communicate(timeout=900)
    assert second.returncode == 1, err
    said = " ".join(err.split())
    assert "one/sam/seed-0 failed: there/one/runs/sam/seed-0 is not empty" in said
    assert "ausam: 1 cell failed: one/sam/seed-0. Run the same command to try again." in said
    for name in ("sgd", "ausam-0.5"):
        assert f"one/{name}/seed-0: accuracy " in err
    here = weights(folder / "here")
    assert len(here) == 3
    assert weights(folder / "there") == {name: here[name] for name in ("sgd", "ausam-0.5")}
    assert mine.read_text() == "..."
    # what Ray began goes on here
    cells = recipe.cells(recipe.read("micro", seeds=1), threads=1)
    (cell,) = (c for c in cells if c.name == "sam@2")
    epochs = []

    def on_epoch(_, epoch):
        epochs.append(epoch.epoch)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells.attempt(cell, folder / "there", on_epoch)
    assert epochs[0] > 1


class Task:
    """Ray's remote function, done at once; a cell called "lost" is lost with its process."""

    def remote(self, cell, out, folder):
        text = epochs_text(Epoch(e, 0.1, 1.0, Score(0.0), 1.0, 1, 2, 2, 1.0, 0, 1) for e in (1, 2))
        path = cell.folder(out) / "metrics.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        Ray.later.append(lambda: path.write_text(text))
        return cell.id


class Ray:
    """As much of Ray as the launcher uses: every wait writes the epochs of a cell and ends the last that began."""

    exceptions = ray.exceptions
    later: ClassVar = []
    cancelled: ClassVar = []

    @staticmethod
    def wait(references, timeout):
        for write in Ray.later:
            write()
        return [references[-1]], references[:-1]

    @staticmethod
    def get(reference):
        if "lost" in reference:
            raise ray.exceptions.WorkerCrashedError
        if "full" in reference:
            cause = WriteError("disk")
            raise ray.exceptions.RayTaskError("cell", "...", cause).as_instanceof_cause()
        return f"{reference} done"

    @staticmethod
    def cancel(reference, force):
        Ray.cancelled.append((reference, force))


def test_epochs_are_told_from_the_files_and_what_is_left_is_cancelled(tmp_path):
    config = recipe.resolve(epochs=2)
    cells = [Cell("one", name, config) for name in ("a", "full", "lost", "b")]
    calls = []
    outcomes = launch._launched(Ray, Task(), cells, tmp_path, lambda cell, epoch: calls.append((cell, epoch.epoch)))
    assert next(outcomes) == (cells[3], "one/b/seed-0 done")
    assert calls == [(cell.id, epoch) for cell in cells for epoch in (1, 2)]
    cell, failed = next(outcomes)
    assert (cell, failed.text.startswith("its process was lost: "), failed.no_data) == (cells[2], True, False)
    with pytest.raises(WriteError, match="disk"):  # it concerns all cells
        next(outcomes)
    assert Ray.cancelled == [("one/a/seed-0", True)]
    assert len(calls) == 8  # each once


def test_mistakes_are_told_before_anything_starts(folder, monkeypatch, capsys):
    def line(*more):
        assert main(command("--out", "out", *more)) == 2
        return capsys.readouterr().err.splitlines()[-1]

    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    assert line("--launcher", "ray") == ("ausam: --launcher ray needs the package ray. Install it: pip install ray")
    assert not (folder / "out").exists()
