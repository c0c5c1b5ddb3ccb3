"""Whole runs on poses, and table 4."""

import json

import pytest

from ausam_lab.cli.main import main
from ausam_lab.data.catalogue import resolve
from ausam_lab.paper import recipe, reproduce, tables
from ausam_lab.paper.pose import stick_figures
from ausam_lab.paper.pose.simcc import GROUPS
from ausam_lab.training.loop import learning_rate, train
from tests.lab.paper.pose.helpers import person, put_mpii

# whole runs


FEW = {"data": "stick-figures", "train_size": 24, "test_size": 8, "epochs": 3, "batch_size": 8, "threads": 1}


def test_a_run_resumes_bit_for_bit(tmp_path, few_figures):
    config = resolve(**FEW, method="sam", policy="ausampling", augment="standard", ramp=1)
    assert (config.base, config.label_smoothing, config.rho) == ("adam", 0.2, 0.05)
    list(train(config, tmp_path / "whole"))
    rows = train(config, tmp_path / "parts")
    first = next(rows)
    rows.close()
    list(train(config, tmp_path / "parts", resume=True))
    mine, theirs = (json.loads((tmp_path / run / "result.json").read_text()) for run in ("parts", "whole"))
    for key in ("weights_sha256", "test", "train", "samples_forward"):
        assert mine[key] == theirs[key]
    assert {"head", "ankle"} <= set(mine["test"]["parts"])
    assert mine["test"]["name"] == first.test.name == "PCKh@0.5"
    assert mine["samples_forward"] == 2 * (24 + 2 * 12)  # all people in the first epoch, then half of each eight


@pytest.mark.nightly
def test_mpii_end_to_end_with_workers(tmp_path, monkeypatch):
    put_mpii(tmp_path, [person(i) for i in range(6)], [person(i) for i in (6, 7)])
    (tmp_path / "netpose.py").write_text(
        "from ausam_lab.paper.networks.hrnet import HRNet\n"
        "def small(joints, channels):\n    return HRNet(4, (1,), 1, 4, 256, joints, channels)\n"
    )
    monkeypatch.chdir(tmp_path)
    digests = set()
    for workers in (0, 2):
        settings = {
            "data_dir": str(tmp_path),
            "model": "netpose:small",
            "epochs": 2,
            "batch_size": 4,
            "workers": workers,
        }
        config = resolve(data="mpii", **settings, method="sam", policy="ausampling", threads=1)
        assert (config.augment, config.base) == ("standard", "adam")
        rows = list(train(config, tmp_path / f"run{workers}"))
        assert [epoch.samples for epoch in rows] == [6, 3]
        digests.add(json.loads((tmp_path / f"run{workers}" / "result.json").read_text())["weights_sha256"])
    assert len(digests) == 1


@pytest.mark.nightly
def test_the_small_network_learns_a_few_figures_by_heart(tmp_path, monkeypatch):
    monkeypatch.setattr(stick_figures, "TRAIN", 16)
    monkeypatch.setattr(stick_figures, "TEST", 16)
    settings = {"data": "stick-figures", "epochs": 40, "batch_size": 8, "test_size": 15, "threads": 1}
    config = resolve(**settings, method="plain", policy="full", lr_steps="")
    rows = list(train(config, tmp_path / "run"))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert rows[0].test.value < 20
    assert result["train"]["value"] > 60
    assert rows[-1].train_loss < 0.7 * rows[0].train_loss


# table 4


def test_the_recipe_is_the_papers():
    cells = {c.name: c.config for c in recipe.cells(recipe.read("table4", seeds=1), device="cpu")}
    assert list(cells) == ["sgd", "sam", "ausam-0.5", "sam@0.5", "sam@0.5x0.5", "sam+random"]
    for name, config in cells.items():
        assert (config.data, config.model, config.base) == ("mpii", "hrnet-w32", "adam")
        assert config.batch_size == (32 if name == "sam@0.5x0.5" else 64)
        assert (config.lr, config.weight_decay, config.rho, config.label_smoothing) == (1e-3, 1e-4, 0.05, 0.2)
        assert (config.s_min, config.s_max, config.ramp, config.augment) == (0.1, 1.0, 30, "standard")
        assert config.epochs == (105 if name.startswith("sam@0.5") else 210)
        part = config.epochs / 210
        rates = [learning_rate(config, epoch * part) for epoch in (0, 169, 170, 199, 200, 209)]
        assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])
    rows = {row.name: row for row in recipe.read("table4").blocks[0].rows}
    assert list(rows["sam"].parts.values()) == [97.0, 95.7, 89.6, 84.2, 88.4, 85.5, 81.9]
    assert [rows[n].score for n in ("sgd", "sam", "ausam-0.5")] == [89.3, 89.4, 89.5]
    assert [rows[n].speed for n in ("sgd", "sam", "ausam-0.5")] == [183, 100, 144]
    small = recipe.cells(recipe.read("table4", "small"), device="cpu")[0].config
    assert (small.data, small.model) == ("stick-figures", "hrnet-w16-small")


@pytest.fixture(scope="module")
def part_of_table4(tmp_path_factory):
    """Two of the rows, in next to no time."""
    folder, patch = tmp_path_factory.mktemp("recipes"), pytest.MonkeyPatch()
    text = (recipe.FOLDER / "table4.toml").read_text()
    text = text.replace("epochs = 14\n", "epochs = 1\ntrain_size = 16\ntest_size = 8\n")
    (folder / "table4.toml").write_text(text)
    patch.setattr(recipe, "FOLDER", folder)
    patch.setattr(stick_figures, "TRAIN", 40)
    patch.setattr(stick_figures, "TEST", 20)
    out = tmp_path_factory.mktemp("table4") / "out"
    flags = ["--scale", "small", "--seeds", "1", "--only", "sgd", "--only", "sam", "--out", str(out), "--threads", "1"]
    assert main(["reproduce", "table4", *flags]) == 0
    yield out
    patch.undo()


def test_table4_has_a_line_for_each_group_of_joints(part_of_table4):
    assert main(["report", str(part_of_table4)]) == 0
    table = reproduce.rewrite(part_of_table4)
    ours = {row.name: row for row in table.results[0].rows}["sam"]
    lines = [list(line.cells) for line in tables.table(table).lines]
    at = lines.index(["SAM", "89.4", "100", f"{ours.mean:.1f} (1)", "100"])
    assert lines[at + 1 : at + 8] == [
        [f"· {name}", paper, "", f"{ours.parts[name]:.1f}", ""]
        for name, paper in zip(GROUPS, ["97.0", "95.7", "89.6", "84.2", "88.4", "85.5", "81.9"], strict=True)
    ]
    at = lines.index(["AUSAM-0.5¹", "89.5", "144", "missing", "–"])
    assert lines[at + 1] == ["· head", "96.9", "", "missing", ""]
    assert ["SAM (half the epochs)†", "–", "–", "missing", "–"] in lines
