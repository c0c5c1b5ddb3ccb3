"""The benchmark at equal cost: its recipe, its budgets, and a small one of its kind from end to end."""

import re
from dataclasses import fields

import pytest
import torch

from ausam_lab.cli.main import main
from ausam_lab.config import Config
from ausam_lab.data.catalogue import entry, problem
from ausam_lab.data.labels import long_tail
from ausam_lab.experiments import run_cells
from ausam_lab.paper import recipe, reproduce
from ausam_lab.paper.records.equal_cost import EqualCost
from ausam_lab.records import store
from ausam_lab.registry.from_config import configured, method_and_policy
from tests.lab.helpers import read

MICRO = """
title = "Micro budgets"
seeds = 2
tuning = "nothing was tuned"
[settings]
data = "digits"
train_size = 128
test_size = 100
epochs = 4
threads = 1
[budget."0.5"]
sgd = "sam@0.5x0.5"
controls = ["sgd", "sam@0.5x0.5"]
contenders = [{ name = "ausam-0.5", twin = "sam@0.5x0.5" }]
[budget."1"]
controls = ["sam"]
[[block]]
name = "one"
column = "noisy"
settings = { label_noise = 0.2 }
settings_of.sgd = { lr = 0.02 }
primary = "ausam-0.5"
tuning = "rho by hand"
budget."1".contenders = ["gsam"]
[[block]]
name = "two"
column = "clean"
seeds = 1
without = ["sgd"]
settings = { label_noise = 0.0 }
"""
CELLS = [
    "one/sgd/seed-0",
    "one/sam@0.5x0.5/seed-0",
    "one/ausam-0.5/seed-0",
    "one/sam/seed-0",
    "one/gsam/seed-0",
    "two/sam@0.5x0.5/seed-0",
    "two/ausam-0.5/seed-0",
    "two/sam/seed-0",
    "one/sgd/seed-1",
    "one/sam@0.5x0.5/seed-1",
    "one/ausam-0.5/seed-1",
    "one/sam/seed-1",
    "one/gsam/seed-1",
]


@pytest.fixture
def micro(tmp_path, monkeypatch):
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "micro.toml").write_text(MICRO)
    monkeypatch.setattr(recipe, "FOLDER", folder)


# the recipe


def test_the_recipe_is_legal_throughout():
    benchmark = recipe.read("equal-cost")
    assert benchmark.equal_cost
    assert benchmark.folder == "equal-cost"
    known = {f.name for f in fields(Config)}
    for block in benchmark.blocks:
        assert set(block.settings) <= known
        assert len(block.names) == len(block.rows), "a method has one cost, so it stands under one budget"
        by_name = {row.name: row for row in block.rows}
        for row in block.rows:
            assert row.control == (not row.sgd), "every contender is compared with SGD"
            assert {row.budget} >= {by_name[name].budget for name in (row.twin, row.sgd) if name}
        assert by_name[block.primary].twin
        assert "sam" in by_name, "headroom needs it"
        assert block.tuning
    for cell in recipe.cells(recipe.read("equal-cost", seeds=1), device="cpu"):
        method_and_policy(cell.config, steps=1000)
    with pytest.raises(ValueError, match=r'scale is "small", but equal-cost has only one scale\. Leave out --scale\.'):
        recipe.read("equal-cost", "small")


def samples(config, n):
    """Samples through both passes, counted epoch by epoch and batch by batch; None where only a run can tell."""
    method, policy = method_and_policy(config, steps=1000)
    if type(method).__name__ in ("VSAM", "AESAM") or policy.count(config.epochs // 2, 8) is None:
        return None
    sizes = [min(config.batch_size, n - start) for start in range(0, n, config.batch_size)]
    kept = sum(policy.count(epoch, size) for epoch in range(config.epochs) for size in sizes)
    return kept * sum(method.passes)


@pytest.mark.parametrize("block", recipe.read("equal-cost").blocks, ids=lambda block: block.name)
def test_every_row_costs_its_budget_and_a_control_at_most(block):
    config = recipe.base(block, device="cpu")
    n = config.train_size or entry(config.data).train
    if config.imbalance not in (0, 1):
        # A subset has classes of one size, so the tail of data that is not embedded is known without it.
        classes = entry(config.data).num_outputs
        even = torch.arange(config.train_size) % classes
        n = len(long_tail(even, classes, config.imbalance) if config.train_size else problem(config).train_y)
    sam = samples(configured("sam", config), n)
    assert sam == 4 * n * config.epochs
    known = {row.name: cost / sam for row in block.rows if (cost := samples(configured(row.name, config), n))}
    assert len(known) > 0.8 * len(block.rows)
    budget = {row.name: row.budget for row in block.rows}
    assert {name: cost for name, cost in known.items() if cost / budget[name] > 1.1} == {}
    # A control may cost less, which the page says: then it shows that the budget is not needed.
    names = {name for row in block.rows if not row.control for name in (row.name, row.twin, row.sgd)} & known.keys()
    assert {name: known[name] for name in names if known[name] / budget[name] < 0.9} == {}


# a small one


def test_blocks_have_their_own_rows_and_seeds(micro):
    benchmark = recipe.read("micro")
    assert [c.id for c in recipe.cells(benchmark, device="cpu")] == CELLS
    rates = {c.name: c.config.lr for c in recipe.cells(benchmark, device="cpu") if c.block == "one"}
    assert rates == {"sgd": 0.02, "sam@0.5x0.5": 0.05, "ausam-0.5": 0.05, "sam": 0.05, "gsam": 0.05}
    assert {c.config.threads for c in recipe.cells(benchmark, device="cpu", threads=2)} == {2}, "the recipe says 1"
    assert [block.seeds for block in recipe.read("micro", seeds=3).blocks] == [3, 3]
    assert [block.seeds for block in recipe.read("micro", seeds={"one": 1}).blocks] == [1, 1]
    (gsam,) = (row for row in benchmark.blocks[0].rows if row.name == "gsam")
    assert (gsam.budget, gsam.control) == (1.0, False)
    (recipe.FOLDER / "micro.toml").write_text(MICRO.replace('without = ["sgd"]', 'without = ["sgdd"]'))
    with pytest.raises(ValueError, match="two leaves out sgdd, which is not one of its rows"):
        recipe.read("micro")


def test_a_pattern_stands_for_every_row_that_it_matches_and_a_later_key_wins(micro):
    text = MICRO.replace('without = ["sgd"]', 'without = ["s?d", "*-0.5"]')
    text = text.replace(
        "settings_of.sgd ", 'settings_of."sam*" = { lr = 0.5 }\nsettings_of.sam = { lr = 0.3 }\nsettings_of.sgd '
    )
    (recipe.FOLDER / "micro.toml").write_text(text)
    two = recipe.read("micro").blocks[1]
    assert two.names == ["sam@0.5x0.5", "sam"]
    rates = {cell.name: cell.config.lr for cell in recipe.cells(recipe.read("micro")) if cell.block == "one"}
    assert rates == {"sgd": 0.02, "sam@0.5x0.5": 0.5, "ausam-0.5": 0.05, "sam": 0.3, "gsam": 0.05}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('twin = "sam@0.5x0.5"', 'twin = "sam*"', "one compares ausam-0.5 with sam.*, which is not one of"),
        ('twin = "sam@0.5x0.5"', 'twin = "sam+random"', "one compares ausam-0.5 with sam.random, which is not one of"),
        ('primary = "ausam-0.5"', 'primary = "gsam"', "The primary row of one, gsam, must .* have a twin"),
        ("settings_of.sgd ", "settings_of.sgdd ", "one has settings of sgdd, which is not one of its rows"),
        ("settings_of.sgd ", "rates ", "The block one has rates, which is unknown. It may have .*settings_of"),
        ("[settings]", "[setting]", "The recipe micro has setting, which is unknown"),
        ('"ausam-0.5", twin', '"ausam-0.5", settings = { lr = 1 }, twin', "The row ausam-0.5 has settings, which"),
    ],
)
def test_a_recipe_with_a_wrong_name_is_refused(micro, old, new, message):
    (recipe.FOLDER / "micro.toml").write_text(MICRO.replace(old, new))
    with pytest.raises(ValueError, match=message):
        recipe.read("micro")


def test_a_benchmark_is_stopped_resumed_and_reported(micro, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    original, epochs = run_cells.train, 0

    def interrupted(*args, **settings):
        nonlocal epochs
        for row in original(*args, **settings):
            epochs += 1
            if epochs == 5:  # in the second run
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(run_cells, "train", interrupted)
    assert main(["reproduce", "micro", "--out", str(out), "--only", "one"]) == 130
    monkeypatch.setattr(run_cells, "train", original)
    capsys.readouterr()
    assert main(["reproduce", "micro", "--out", str(out), "--only", "one"]) == 0
    said = capsys.readouterr()
    assert re.findall(r"^(\S+): accuracy", said.err, re.MULTILINE) == [c for c in CELLS if c.startswith("one")][1:]
    assert "clean     50 %     missing" not in said.out
    assert "3 of 13 runs are missing." in said.out
    result = store.read_finished(out / "results.json", EqualCost)
    one, two = result.problems
    assert [e.row.n for e in one.entries] == [2] * 5
    assert [e.row for e in two.entries] == [None] * 3
    assert (one.tuning, result.tuning, one.seeds, two.seeds) == ("rho by hand", "nothing was tuned", (0, 1), (0,))
    cost = {e.name: e.cost for e in one.entries}
    # int(0.5 * 64) of 64 in three of four epochs
    assert cost == {"sgd": 0.5, "sam@0.5x0.5": 0.5, "ausam-0.5": 0.625, "sam": 1.0, "gsam": 1.0}
    scores = {e.name: e.row.scores for e in one.entries}
    for name, both in scores.items():
        runs = [read(out / "one" / "runs" / name / f"seed-{s}" / "result.json") for s in (0, 1)]
        assert list(both) == [run["test"]["value"] for run in runs]
    for name in ("report.html", "table.md", "table.tex", "table.csv", "results.csv", "one/report.html"):
        (out / name).unlink()
    assert main(["report", str(out)]) == 0
    again = capsys.readouterr().out
    assert again.split("\n\nTuning")[0] == said.out.split("\n\nTuning")[0]
    page = (out / "report.html").read_text()
    assert "Tuning, noisy: rho by hand" in page
    assert re.findall(r'href="([^"]+/report.html)"', page) == ["one/report.html"]
    assert "Not run: clean." in page
    assert (out / "one" / "report.html").exists()
    assert main(["report", str(out / "results.json")]) == 0
    assert (out / "results.html").exists()


def test_a_folder_holds_one_benchmark(micro, tmp_path, capsys):
    out = tmp_path / "out"
    reproduce.write(recipe.read("micro"), out, "a command")
    (recipe.FOLDER / "other.toml").write_text(MICRO)
    assert main(["reproduce", "other", "--out", str(out)]) == 2
    assert "contains micro. Choose another --out." in capsys.readouterr().err


def test_seeds_given_hold_for_every_block(micro, tmp_path, capsys):
    assert main(["reproduce", "micro", "--out", str(tmp_path / "out"), "--seeds", "3", "--only", "two/sam"]) == 0
    said = capsys.readouterr()
    assert said.err.count("two/sam/seed-") == 3
    assert "21 of 24 runs are missing." in said.out
    assert main(["report", str(tmp_path / "out")]) == 0
    assert "21 of 24 runs are missing." in capsys.readouterr().out
    assert main(["reproduce", "micro", "--seeds", "0"]) == 2
    assert "--seeds is 0" in capsys.readouterr().err


def test_pages_take_a_small_part_of_the_time(monkeypatch):
    now, calls = 0.0, []
    monkeypatch.setattr(reproduce.time, "monotonic", lambda: now)

    def write():
        nonlocal now
        now += 2.0
        calls.append(now)

    occasional = reproduce._Occasional(write)
    for _ in range(100):
        now += 1.0
        occasional()
    assert len(calls) == 1 + 100 // 20
