"""Quantised runs that start from full precision, and table 6."""

from __future__ import annotations

import json
import re

import pytest

from ausam_lab.cli.main import main
from ausam_lab.data.catalogue import resolve
from ausam_lab.experiments import run_cells
from ausam_lab.paper import recipe
from ausam_lab.records.files import file_lock
from ausam_lab.training.loop import train
from tests.lab.helpers import read

# runs


TINY = ["--train-size", "256", "--test-size", "200", "--batch-size", "32", "--label-noise", "0", "--threads", "1"]


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A run in full precision to start from."""
    out = tmp_path_factory.mktemp("full") / "run"
    assert main(["train", "--method", "plain", "--epochs", "8", "--out", str(out), *TINY]) == 0
    return out


QAT = {"train_size": 256, "test_size": 200, "batch_size": 32, "label_noise": 0.0, "threads": 1, "epochs": 3, "lr": 0.01}


KINDS = {
    "sgd": {"method": "plain"},
    "sam": {"method": "sam"},
    "ausam": {"method": "sam", "policy": "ausampling", "ramp": 1},
}


@pytest.mark.parametrize("kind", KINDS)
def test_training_from_full_precision_and_its_resumption(full, tmp_path, caplog, kind):
    config = resolve(**QAT, **KINDS[kind], quantize=4, init=str(full))
    rows = list(train(config, tmp_path / "whole"))
    result, theirs = read(tmp_path / "whole" / "result.json"), read(full / "result.json")
    assert result["init_sha256"] == theirs["weights_sha256"]
    assert result["parameters"] == theirs["parameters"]
    first = json.loads((full / "metrics.jsonl").read_text().splitlines()[0])
    assert rows[0].train_loss < 0.75 * first["train_loss"]  # it did not start over
    assert result["test"]["value"] > theirs["test"]["value"] - 10

    moved = tmp_path / "moved"
    moved.mkdir()
    for path in full.iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    config = resolve(**QAT, **KINDS[kind], quantize=4, init=str(moved))
    stopped = train(config, tmp_path / "parts")
    next(stopped)
    stopped.close()
    for path in moved.iterdir():  # what was begun needs it no more
        path.unlink()
    list(train(config, tmp_path / "parts", resume=True))
    again = read(tmp_path / "parts" / "result.json")
    assert (again["weights_sha256"], again["init_sha256"]) == (result["weights_sha256"], result["init_sha256"])
    assert not caplog.text


def test_compare_with_quantised_networks(full, tmp_path, capsys):
    flags = ["--quantize", "4", "--init", str(full), "--epochs", "2", "--lr", "0.01", "--seeds", "1", *TINY]
    assert main(["compare", "full", "sgd", "sam", "ausam-0.5", *flags, "--out", str(tmp_path)]) == 0
    runs = {name: read(tmp_path / "runs" / name / "seed-0" / "result.json") for name in ("full", "sgd", "sam")}
    assert {name: run["config"]["quantize"] for name, run in runs.items()} == {"full": 0, "sgd": 4, "sam": 4}
    assert (runs["full"]["init_sha256"], len(runs["sam"]["init_sha256"])) == (None, 64)
    rows = {row["name"]: row for row in read(tmp_path / "results.json")["rows"]}
    assert rows["sgd"]["speed_of_sam"] > 0
    assert (rows["full"]["label"], rows["full"]["speed_of_sam"]) == ("Full prec.", None)


# the table


MICRO = """
title = "Micro 6"
seeds = 1
[settings]
data = "digits"
model = "resnet-tiny"
quantize = 4
epochs = 2
lr = 0.01
rho = 0.1
label_noise = 0.0
batch_size = 32
[small]
train_size = 128
test_size = 100
[settings_of.full]
lr = 0.05
epochs = 4
[small.settings_of.full]
epochs = 3
[[block]]
name = "one"
column = "A"
settings = {}
small = {}
extra = ["sam@0.5"]
rows = [
  { name = "full", score = 90.0 },
  { name = "sgd", score = 88.0, std = 0.5, speed = 180 },
  { name = "sam", score = 89.0, std = 0.25, speed = 100 },
]
[[block]]
name = "two"
column = "B"
settings = { model = "resnet-small-w8" }
small = {}
rows = [{ name = "full", score = 91.0 }, { name = "sam", score = 89.5 }]
"""


RUN = ["reproduce", "micro6", "--scale", "small", "--threads", "1", "--seeds", "1"]


@pytest.fixture
def micro6(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "micro6.toml").write_text(MICRO)
    monkeypatch.setattr(recipe, "FOLDER", folder)
    return folder


def results(out):
    return {str(p.parent.relative_to(out)): read(p) for p in sorted(out.rglob("result.json"))}


def test_full_precision_is_trained_once_and_the_others_start_from_it(micro6, tmp_path, capsys):
    out = tmp_path / "out"
    only = ["--only", "one/sgd", "--only", "one/sam", "--only", "sam@0.5"]  # what they start from comes along
    assert main([*RUN, *only, "--out", str(out)]) == 0
    said = capsys.readouterr()
    done = re.findall(r"^(\S+): accuracy", said.err, re.MULTILINE)
    assert done == ["one/full/seed-0", "one/sgd/seed-0", "one/sam/seed-0", "one/sam@0.5/seed-0"]
    runs = results(out)
    full = runs.pop("one/runs/full/seed-0")
    assert {k: full["config"][k] for k in ("quantize", "init", "lr", "epochs", "method", "train_size")} == {
        "quantize": 0,
        "init": "",
        "lr": 0.05,
        "epochs": 3,
        "method": "Plain",
        "train_size": 128,
    }
    assert {r["init_sha256"] for r in runs.values()} == {full["weights_sha256"]}
    assert {(r["config"]["quantize"], r["config"]["lr"]) for r in runs.values()} == {(4, 0.01)}
    assert runs["one/runs/sam@0.5/seed-0"]["epochs"] == 1
    line = next(line for line in said.out.splitlines() if line.startswith("Full prec."))
    assert re.match(r"Full prec\. +90\.00 ● +– +\d+\.\d\d \(1\) +–", line)
    assert "resnet-tiny with 4-bit weights and activations on digits, 128 images, 2" in " ".join(said.out.split())

    # the folder moves to another place, and what is missing is done there
    moved = tmp_path / "elsewhere"
    out.rename(moved)
    (moved / "one" / "runs" / "sgd" / "seed-0" / "result.json").unlink()
    for path in (moved / "one" / "runs" / "sgd" / "seed-0").glob("checkpoint-00002.pt"):
        path.unlink()
    assert main([*RUN, *only, "--out", str(moved)]) == 0
    assert re.findall(r"^(\S+): accuracy", capsys.readouterr().err, re.MULTILINE) == ["one/sgd/seed-0"]
    again = results(moved)
    assert again["one/runs/sgd/seed-0"]["weights_sha256"] == runs["one/runs/sgd/seed-0"]["weights_sha256"]
    assert again["one/runs/sgd/seed-0"]["config"]["init"] == str(moved / "one" / "runs" / "full" / "seed-0")
    assert main(["report", str(moved / "one")]) == 0
    assert "Full prec." in capsys.readouterr().out


def test_a_cell_waits_for_full_precision_in_another_process(micro6, tmp_path, capsys, monkeypatch):
    args = [*RUN, "--only", "one/sam", "--only", "two/sam", "--out", str(tmp_path)]
    with file_lock(tmp_path / "one" / "runs" / "full" / "seed-0.lock"):
        assert main(args) == 0
        err = capsys.readouterr().err
        assert "one/full/seed-0: another process is working on it\n" in err
        assert "one/sam/seed-0: another process is working on it or its initial weights" in err
        assert "two/sam/seed-0: accuracy" in err
        assert not (tmp_path / "one" / "runs" / "sam").exists()
    # the other process is ready when the rest is done: the cell is looked at again
    original, calls = run_cells._run, []

    def run(cell, out, *args):
        calls.append(cell.id)
        return None if calls == ["one/full/seed-0"] else original(cell, out, *args)

    monkeypatch.setattr(run_cells, "_run", run)
    assert main(args) == 0
    assert calls == ["one/full/seed-0", "one/sam/seed-0", "two/full/seed-0", "two/sam/seed-0", *calls[:2]]
    assert re.findall(r"^(\S+): accuracy", capsys.readouterr().err, re.MULTILINE) == calls[:2]


def test_what_starts_from_a_failed_run_is_not_tried(micro6, tmp_path, capsys, monkeypatch):
    original = run_cells.train

    def failing(config, *args, **settings):
        if config.model == "resnet-tiny":
            raise ValueError("no such luck")
        return original(config, *args, **settings)

    monkeypatch.setattr(run_cells, "train", failing)
    assert main([*RUN, "--out", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "4 cells failed: one/full/seed-0, one/sgd/seed-0, one/sam/seed-0, one/sam@0.5/seed-0." in err
    assert "two/sam/seed-0: accuracy" in err


def test_weights_that_are_given_take_the_place_of_full_precision(micro6, full, tmp_path):
    assert main([*RUN, "--init", str(full), "--only", "one/sam", "--out", str(tmp_path)]) == 0
    runs = results(tmp_path)
    assert list(runs) == ["one/runs/sam/seed-0"]
    assert runs["one/runs/sam/seed-0"]["init_sha256"] == read(full / "result.json")["weights_sha256"]


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_the_recipe_of_table_6(scale):
    table = recipe.read("table6", scale, seeds=2)
    cells = {c.id: c for c in recipe.cells(table, device="cpu")}
    assert len(cells) == 2 * 2 * 9
    for block, models in (
        ("resnet18", ("resnet18", "resnet18-w8")),
        ("mobilenetv1", ("mobilenetv1-cifar", "mobilenetv1-cifar-quarter")),
    ):
        for seed in (0, 1):
            full = cells[f"{block}/full/seed-{seed}"]
            assert (full.config.quantize, full.config.method, full.first) == (0, "Plain", None)
            for name in ("sgd", "sam", "ausam-0.5", "sam@0.5", "sam+random"):
                cell = cells[f"{block}/{name}/seed-{seed}"]
                c = cell.config
                assert cell.first is full
                assert (c.data, c.model) == ("cifar10", models[scale == "small"])
                assert (c.quantize, c.lr, c.weight_decay, c.rho, c.s_max) == (4, 0.005, 0.0005, 0.05, 0.5)
                assert (c.augment, c.label_smoothing) == ("none", 0.0)
                assert c.batch_size == (128 if scale == "paper" else 32)
    figures = {b.name: [(r.name, r.score, r.std, r.speed) for r in b.rows if r.score is not None] for b in table.blocks}
    assert figures == {  # typed in again from the paper
        "resnet18": [
            ("full", 88.72, None, None),
            ("sgd", 88.86, 0.18, 174),
            ("sam", 89.75, 0.21, 100),
            ("ausam-0.5", 89.63, 0.10, 130),
        ],
        "mobilenetv1": [
            ("full", 85.81, None, None),
            ("sgd", 84.04, 0.13, 153),
            ("sam", 84.72, 0.11, 100),
            ("ausam-0.5", 84.91, 0.19, 117),
        ],
    }
