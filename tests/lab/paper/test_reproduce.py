"""Tables of the paper: recipes, cells that are done once, tables and what is exported."""

import re
import statistics
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from ausam import METHODS, POLICIES
from ausam_lab.cli.main import main
from ausam_lab.config import Config
from ausam_lab.data.catalogue import DATASETS
from ausam_lab.data.sources import DownloadError
from ausam_lab.experiments import run_cells
from ausam_lab.names.from_config import method_and_policy
from ausam_lab.names.pairs import pair
from ausam_lab.networks.build import MODELS
from ausam_lab.paper import estimate, recipe, reproduce, tables
from ausam_lab.records.files import file_lock
from tests.lab.helpers import read

TABLES = ["table1", "table2", "table3", "table5"]
OTHERS = ["table4", "table6"]  # have tests of their own

MICRO = """
title = "Micro α"
seeds = 2
[notes]
1 = "reported by A & B, 100 % so"
[settings]
data = "digits"
model = "resnet-tiny"
epochs = 2
lr = 0.05
rho = 0.2
[small]
train_size = 128
test_size = 100
[[block]]
name = "one"
group = "Net_1"
column = "A"
settings = { lr = 0.1 }
small = { label_noise = 0.0 }
extra = ["sam@0.5"]
rows = [
  { name = "sgd", score = 90.0, std = 0.5, speed = 180 },
  { name = "sam", score = 91.0, std = 0.25, speed = 100 },
  { name = "sam", score = 92.0, note = 1 },
]
[[block]]
name = "two"
group = "Net_1"
column = "B"
settings = {}
settings_of."sam+info*" = { rho = 0.1 }
small = { label_noise = 0.1 }
rows = [
  { name = "sam", score = 81.0, std = 0.25, speed = 100 },
  { name = "sam+info*", score = 80.0 },
]
"""
CELLS = [
    f"{cell}/seed-{seed}"
    for seed in (0, 1)
    for cell in ("one/sgd", "one/sam", "one/sam@0.5", "two/sam", "two/sam+info*")
]
RUN = ["reproduce", "micro", "--scale", "small", "--threads", "1"]


@pytest.fixture(autouse=True)
def micro(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("recipes")
    for path in recipe.FOLDER.glob("*.toml"):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "micro.toml").write_text(MICRO)
    monkeypatch.setattr(recipe, "FOLDER", folder)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of the micro table."""
    base = tmp_path_factory.mktemp("whole")
    (base / "micro.toml").write_text(MICRO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "FOLDER", base)
        assert main([*RUN, "--out", str(base / "out")]) == 0
    return base / "out"


@pytest.fixture
def by_two_processes(tmp_path_factory):
    """The micro table, done by two processes at once: the folder, and what each of them said."""
    base = tmp_path_factory.mktemp("two-processes")
    (base / "recipes").mkdir()
    (base / "recipes" / "micro.toml").write_text(MICRO)
    code = (
        "import sys; from pathlib import Path; from ausam_lab.paper import recipe; "
        "from ausam_lab.cli.main import main; "
        "recipe.FOLDER = Path(sys.argv[1]); sys.exit(main(sys.argv[2:]))"
    )
    command = [sys.executable, "-c", code, str(base / "recipes"), *RUN, "--out", str(base / "out")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=900)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    return base / "out", said


def groups(table):
    return {section.title: section.lines for section in tables.table(table).sections}


# recipes


def test_every_table_has_its_recipe():
    assert list(recipe.files()) == sorted(["micro", *TABLES, *OTHERS])


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("name", TABLES)
def test_recipes_are_legal_throughout(name, scale):
    table = recipe.read(name, scale, seeds=2)
    assert len({b.name for b in table.blocks}) == len(table.blocks)
    assert len({(b.group, b.column) for b in table.blocks}) == len(table.blocks)
    known = {f.name for f in fields(Config)}
    for block in table.blocks:
        assert set(block.settings) <= known
        assert {str(row.note) for row in block.rows} - {"None"} <= set(table.notes)
        assert {"sgd", "sam", "sam@0.5", "sam@0.5x0.5"} <= set(block.names)
    cells = recipe.cells(table, device="cpu")
    assert len({c.id for c in cells}) == len(cells) == 2 * sum(len(b.names) for b in table.blocks)
    assert [c.config.seed for c in cells] == [0] * (len(cells) // 2) + [1] * (len(cells) // 2)
    for cell in cells:
        config = cell.config
        method_and_policy(config, steps=1000)
        assert config.model in MODELS
        assert config.data in DATASETS
        assert config.momentum == 0.9
        if scale == "paper":  # the official code: 0.9 for the class, 0.1 / (C - 1) for the others
            outputs = DATASETS[config.data].num_outputs
            assert config.label_smoothing * (outputs - 1) / outputs == pytest.approx(0.1, abs=1e-5)
        part, batch = pair(cell.name).epochs, pair(cell.name).batch
        if scale == "paper":
            assert (config.batch_size, config.epochs, config.train_size) == (128 * batch, round(200 * part), 0)
            assert config.augment == "cutout"
        else:
            assert (config.data, config.train_size, config.test_size) == ("cifar10", 2000, 2000)


def test_table2_on_a_laptop():
    cells = {c.name: c.config for c in recipe.cells(recipe.read("table2", "laptop", seeds=1), device="cpu")}
    half = "SAM + Random(alpha=0.5, full_epochs=1)"
    assert set(cells) == {"sgd", "sgd@1x0.5", "sam", half, "ausam-0.5"}
    for name, config in cells.items():
        assert (config.data, config.model, config.epochs) == ("cifar10", "resnet10-w16", 40)
        assert (config.train_size, config.test_size, config.augment) == (0, 0, "standard")
        assert config.batch_size == (64 if name == "sgd@1x0.5" else 128)
    policies = {name: method_and_policy(config, steps=1000)[1] for name, config in cells.items()}
    assert policies[half] == POLICIES["Random"](0.5, full_epochs=1)
    assert policies["ausam-0.5"] == POLICIES["AUSampling"](0.5, s_max=0.5, ramp=6)
    assert recipe.read("table2", "laptop").seeds == 8
    with pytest.raises(ValueError, match="only paper and small"):
        recipe.read("table1", "laptop")


@pytest.mark.parametrize(
    ("name", "block", "settings"),
    [
        ("table1", "resnet18", ("cifar100", "resnet18", 0.05, 0.001, 0.1, 0.5)),
        ("table1", "wrn28-10", ("cifar100", "wrn34-10", 0.05, 0.001, 0.1, 0.5)),
        ("table2", "resnet18-cifar10", ("cifar10", "resnet18", 0.05, 0.001, 0.1, 0.5)),
        ("table2", "resnet18-cifar100", ("cifar100", "resnet18", 0.05, 0.001, 0.1, 0.5)),
        ("table2", "wrn28-10-cifar10", ("cifar10", "wrn34-10", 0.05, 0.001, 0.1, 0.5)),
        ("table2", "wrn28-10-cifar100", ("cifar100", "wrn34-10", 0.05, 0.001, 0.1, 0.5)),
        ("table2", "pyramidnet110-cifar10", ("cifar10", "pyramidnet110-270", 0.1, 0.0005, 0.2, 1.0)),
        ("table2", "pyramidnet110-cifar100", ("cifar100", "pyramidnet110-270", 0.1, 0.0005, 0.2, 1.0)),
        ("table3", "resnet18", ("tiny-imagenet", "resnet18", 0.05, 0.001, 0.1, 0.5)),
        ("table3", "resnet50", ("tiny-imagenet", "resnet50", 0.1, 0.0005, 0.1, 1.0)),
        ("table3", "mobilenetv1", ("tiny-imagenet", "mobilenetv1-224", 0.05, 0.0005, 0.05, 1.0)),
        ("table5", "resnet18", ("cifar100", "resnet18", 0.05, 0.001, 0.1, 0.5)),
    ],
)
def test_settings_are_those_of_the_appendix(name, block, settings):
    (cell,) = (c for c in recipe.cells(recipe.read(name, seeds=1), device="cpu") if (c.block, c.name) == (block, "sam"))
    keys = ("data", "model", "lr", "weight_decay", "rho", "s_max")
    assert tuple(getattr(cell.config, k) for k in keys) == settings


def test_rows_become_the_methods_of_the_paper():
    def built(block, name):
        (cell,) = (
            c for c in recipe.cells(recipe.read("table2", seeds=1), device="cpu") if c.id == f"{block}/{name}/seed-0"
        )
        return method_and_policy(cell.config, steps=78200)

    assert built("resnet18-cifar10", "esam")[0] == METHODS["ESAM"](rho=0.05, beta=0.6, gamma=0.5)
    assert built("wrn28-10-cifar100", "esam")[0] == METHODS["ESAM"](rho=0.1, beta=0.5, gamma=0.5)
    assert built("pyramidnet110-cifar10", "esam")[0] == METHODS["ESAM"](rho=0.2, beta=0.5, gamma=0.5)
    assert built("resnet18-cifar10", "k-sam")[0] == METHODS["KSAM"](rho=0.1, keep=0.33)
    assert built("resnet18-cifar100", "looksam-5")[0] == METHODS["LookSAM"](rho=0.1, k=5)
    assert built("pyramidnet110-cifar100", "ausam-0.4") == (
        METHODS["SAM"](rho=0.2),
        POLICIES["AUSampling"](alpha=0.4, s_min=0.1, s_max=1.0, ramp=30),
    )
    smaller = POLICIES["AUSampling"](alpha=0.6, s_max=0.5, ramp=30)
    assert built("resnet18-cifar10", "ausam-0.6")[1] == smaller


@pytest.mark.parametrize(
    ("name", "block", "row", "note", "figures"),
    [  # typed in again from the paper
        ("table1", "resnet18", "ausam-0.7", "", (80.92, 0.17, 114)),
        ("table1", "wrn28-10", "sgd", "", (82.47, 0.30, 195)),
        ("table1", "wrn28-10", "ausam-0.6", "", (84.73, 0.29, 152)),
        ("table2", "resnet18-cifar10", "looksam-5", "", (96.47, 0.13, 115)),
        ("table2", "resnet18-cifar10", "esam", "", (96.58, 0.13, 104)),
        ("table2", "resnet18-cifar10", "esam", "1", (96.56, 0.08, 140)),
        ("table2", "resnet18-cifar100", "g-rst", "4", (80.05, 0.18, None)),
        ("table2", "resnet18-cifar100", "k-sam", "3", (79.00, 0.16, 189)),
        ("table2", "wrn28-10-cifar10", "ausam-0.5", "", (97.3, 0.06, 179)),
        ("table2", "wrn28-10-cifar100", "saf", "2", (83.81, 0.04, 197)),
        ("table2", "wrn28-10-cifar100", "saf", "", (82.57, 0.18, 182)),
        ("table2", "pyramidnet110-cifar10", "mesa", "2", (97.46, 0.09, 171)),
        ("table2", "pyramidnet110-cifar10", "esam", "1", (97.81, 0.01, 139)),
        ("table2", "pyramidnet110-cifar100", "sam", "", (86.06, 0.16, 100)),
        ("table2", "pyramidnet110-cifar100", "ausam-0.6", "", (85.78, 0.06, 153)),
        ("table3", "resnet18", "ausam-0.6", "", (64.49, 0.39, 151)),
        ("table3", "resnet50", "sgd", "", (65.60, 0.51, 201)),
        ("table3", "mobilenetv1", "ausam-0.5", "", (58.55, 0.23, 185)),
        ("table5", "resnet18", "sam+info*", "", (79.68, 0.26, 137)),
        ("table5", "resnet18", "sam+random", "", (80.56, 0.19, 120)),
        ("table5", "resnet18", "ausam-0.5", "", (None, None, None)),
    ],
)
def test_figures_are_the_papers(name, block, row, note, figures):
    (b,) = (b for b in recipe.read(name).blocks if b.name == block)
    (r,) = (r for r in b.rows if (r.name, r.note) == (row, int(note) if note else None))
    assert (r.score, r.std, r.speed) == figures


def test_only_takes_blocks_rows_and_both():
    cells = recipe.cells(recipe.read("micro", "small"), device="cpu")

    def ids(*patterns):
        return [c.id for c in recipe.chosen(cells, list(patterns))]

    assert ids() == CELLS
    assert ids("sam") == ["one/sam/seed-0", "two/sam/seed-0", "one/sam/seed-1", "two/sam/seed-1"]
    assert ids("two") == [i for i in CELLS if i.startswith("two/")]
    assert ids("one/s*/seed-1") == ["one/sgd/seed-1", "one/sam/seed-1", "one/sam@0.5/seed-1"]
    assert ids("one/sgd", "two/sam/seed-0") == ["one/sgd/seed-0", "two/sam/seed-0", "one/sgd/seed-1"]
    with pytest.raises(ValueError, match=r"No cell matches --only nine\. Use a block \(one, two\), a row \(sgd, sam, "):
        ids("nine")


# running


@pytest.mark.nightly
def test_two_processes_do_every_cell_exactly_once(by_two_processes):
    out, said = by_two_processes
    done = [re.findall(r"^(\S+): accuracy", text, re.MULTILINE) for text in said]
    assert sorted(done[0] + done[1]) == sorted(CELLS)
    assert len(list(out.rglob("result.json"))) == len(CELLS)
    assert not any(
        "missing" in note for note in tables.footnotes(reproduce.write(recipe.read("micro", "small"), out, ""))
    )


def test_a_cell_is_an_ordinary_run_with_the_settings_of_its_row(whole):
    config = read(whole / "two" / "runs" / "sam+info%2A" / "seed-1" / "config.json")
    expected = {"lr": 0.05, "rho": 0.1, "label_noise": 0.1, "train_size": 128, "seed": 1, "epochs": 2, "method": "SAM"}
    assert expected.items() <= config.items()
    assert read(whole / "one" / "runs" / "sam@0.5" / "seed-0" / "config.json")["epochs"] == 1


def test_what_was_interrupted_goes_on_and_ends_the_same(whole, tmp_path, monkeypatch, capsys):
    original, epochs = run_cells.train, 0

    def interrupted(*args, **settings):
        nonlocal epochs
        for row in original(*args, **settings):
            epochs += 1
            if epochs == 4:  # after the first epoch of the third run
                raise KeyboardInterrupt
            yield row

    args = [*RUN, "--out", str(tmp_path), "--only", "sam", "--only", "sam+info*", "--seeds", "1"]
    monkeypatch.setattr(run_cells, "train", interrupted)
    assert main(args) == 130
    assert len(list(tmp_path.rglob("result.json"))) == 1
    monkeypatch.setattr(run_cells, "train", original)
    assert main(args) == 0
    runs = {p.relative_to(tmp_path): read(p)["weights_sha256"] for p in tmp_path.rglob("result.json")}
    assert len(runs) == 3
    assert runs == {p: read(whole / p)["weights_sha256"] for p in runs}


def test_again_computes_nothing(whole, capsys, monkeypatch):
    out = whole
    times = {p: p.stat().st_mtime_ns for p in out.rglob("result.json")}
    monkeypatch.setattr(run_cells, "train", lambda *a, **k: pytest.fail("a finished cell was run again"))
    assert main([*RUN, "--out", str(out)]) == 0
    assert {p: p.stat().st_mtime_ns for p in out.rglob("result.json")} == times
    assert capsys.readouterr().err == "10 runs, 0 epochs to do\n"


def test_a_locked_cell_is_passed_over(tmp_path, capsys):
    args = [*RUN, "--out", str(tmp_path), "--only", "one/sgd", "--only", "one/sam@0.5", "--seeds", "1"]
    with file_lock(tmp_path / "one" / "runs" / "sgd" / "seed-0.lock") as mine:
        assert mine
        assert main(args) == 0
    said = capsys.readouterr()
    assert "one/sgd/seed-0: another process is working on it" in said.err
    assert "one/sam@0.5/seed-0: accuracy" in said.err
    assert re.search(r"^SGD +90.00 ± 0.50 +180 +missing +–", said.out, re.MULTILINE)
    assert main(args) == 0
    assert "one/sgd/seed-0: accuracy" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), DownloadError("no network")])
def test_a_failing_cell_does_not_stop_the_others(tmp_path, monkeypatch, capsys, caplog, error):
    original, tried = run_cells.train, []

    def failing(config, *args, **settings):
        tried.append(config.rho)
        if config.rho == 0.1:
            raise error
        return original(config, *args, **settings)

    monkeypatch.setattr(run_cells, "train", failing)
    only = ["--only", "two", "--only", "sam@0.5"]
    assert main([*RUN, "--out", str(tmp_path), "--seeds", "2", *only]) == 1
    assert f"two/sam+info*/seed-0 failed: {error}" in caplog.text
    err = capsys.readouterr().err
    if isinstance(error, DownloadError):  # the data of the others is as far away
        assert len(tried) == 3
        assert "4 cells failed" in err
    else:
        assert len(tried) == 6
        assert "2 cells failed: two/sam+info*/seed-0, two/sam+info*/seed-1." in err


def test_a_cell_moves_to_another_machine_but_not_to_other_settings(tmp_path, monkeypatch, caplog, capsys):
    args = ["reproduce", "micro", "--scale", "small", "--out", str(tmp_path), "--only", "one/sam", "--seeds", "1"]
    original = run_cells.train

    def one_epoch(*a, **k):
        yield next(original(*a, **k))
        raise KeyboardInterrupt

    monkeypatch.setattr(run_cells, "train", one_epoch)
    assert main([*args, "--threads", "1", "--data-dir", "there"]) == 130
    monkeypatch.setattr(run_cells, "train", original)
    assert main([*args, "--threads", "2", "--data-dir", "here"]) == 0
    folder = tmp_path / "one" / "runs" / "sam" / "seed-0"
    assert read(folder / "config.json")["data_dir"] == "here"
    assert main([*args, "--threads", "1", "--data-dir", "elsewhere"]) == 0  # finished: stays as it is
    assert read(folder / "config.json")["data_dir"] == "here"
    (recipe.FOLDER / "micro.toml").write_text(MICRO.replace("rho = 0.2", "rho = 0.3"))
    assert main(args) == 1
    assert "rho 0.2 there, 0.3 here" in caplog.text
    assert "1 cell failed: one/sam/seed-0. Run the same command to try again." in capsys.readouterr().err


def test_a_folder_with_another_table_is_refused(whole, capsys):
    assert main(["reproduce", "table1", "--scale", "small", "--out", str(whole)]) == 2
    assert "contains micro at scale small. Choose another --out." in capsys.readouterr().err
    assert main(["reproduce", "table9"]) == 2
    assert 'There is no table "table9"' in capsys.readouterr().err


def test_dry_run_counts_what_is_left_and_writes_nothing(whole, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^10 of 10 cells are left: about ", text, re.MULTILINE)
    lines = [line.split()[:3] for line in text.splitlines() if line.startswith(("one", "two"))]
    assert lines == [["one", "6", "10"], ["two", "4", "8"]]
    assert not list(tmp_path.iterdir())
    assert main([*RUN, "--dry-run", "--out", str(whole)]) == 0
    assert "0 of 10 cells are left: about 0 s" in capsys.readouterr().out


def test_missing_cells_are_shown_as_missing(tmp_path):
    table = reproduce.write(recipe.read("micro", seeds=3), tmp_path, "a command")
    assert [*groups(table)["Net_1 on A"][1].cells] == ["SAM", "91.00 ± 0.25", "100", "missing", "–"]
    assert tables.footnotes(table)[-1] == "15 of 15 runs are missing."


def test_every_network_is_estimated_once(tmp_path, monkeypatch):
    """The same table once took 13,049 or 729 days, depending on when it was asked."""
    asked = []
    monkeypatch.setattr(estimate, "sample_seconds", lambda config: asked.append(config.model) or 0.001)
    estimate.plan(recipe.cells(recipe.read("table2", seeds=1), device="cpu"), tmp_path)
    assert sorted(asked) == sorted(["resnet18", "wrn34-10", "pyramidnet110-270"])


def test_the_estimate_counts_passes_samples_and_epochs():
    cells = recipe.cells(recipe.read("table2", seeds=1), device="cpu")
    config = {c.name: c.config for c in cells if c.block == "resnet18-cifar10"}
    test = 200 * 10_000 / 3
    assert estimate.samples_of(config["sgd"], 200) == pytest.approx(200 * 50_000 + test)
    assert estimate.samples_of(config["sam"], 200) == pytest.approx(2 * 200 * 50_000 + test)
    assert estimate.samples_of(config["ausam-0.4"], 200) == pytest.approx(2 * 0.4 * 200 * 50_000 + test)
    assert estimate.samples_of(config["sam"], 50) == pytest.approx(2 * 50 * 50_000 + test / 4)
    small = replace(config["sgd"], train_size=300, test_size=60)
    assert estimate.samples_of(small, 200) == pytest.approx(200 * (300 + 20))


# tables


def test_the_table_agrees_with_the_runs(whole):
    def cell(block, name):
        runs = [read(whole / block / "runs" / name / f"seed-{s}" / "result.json") for s in (0, 1)]
        sam = [read(whole / block / "runs" / "sam" / f"seed-{s}" / "result.json") for s in (0, 1)]
        a, b = (r["test"]["value"] for r in runs)
        speed = 100 * sum(r["train_seconds"] for r in sam) / sum(r["train_seconds"] for r in runs)
        return [f"{(a + b) / 2:.2f} ± {statistics.stdev([a, b]):.2f} (2)", f"{speed:.0f}"]

    expected = {
        "Net_1 on A": [
            ["SGD", "90.00 ± 0.50", "180", *cell("one", "sgd")],
            ["SAM", "91.00 ± 0.25", "100", *cell("one", "sam")],
            ["SAM¹", "92.00", "–", *cell("one", "sam")],
            ["SAM (half the epochs)†", "–", "–", *cell("one", "sam@0.5")],
        ],
        "Net_1 on B": [
            ["SAM", "81.00 ± 0.25", "100", *cell("two", "sam")],
            ["SAM+Info*", "80.00", "–", *cell("two", "sam+info%2A")],
        ],
    }
    summary = reproduce.rewrite(whole)
    cells = {group: [[*line.cells] for line in lines] for group, lines in groups(summary).items()}
    assert cells == expected
    lines = tables.text(summary).replace("●", " ").splitlines()
    for row in (*expected["Net_1 on A"], *expected["Net_1 on B"]):
        assert [re.sub(" +", " ", line).strip() for line in lines].count(" ".join(row)) == 1
    assert max(map(len, lines)) <= 80
    notes = tables.footnotes(summary)
    assert notes[0] == "¹ In the paper: reported by A & B, 100 % so."
    assert "Net_1 on B here is resnet-tiny on digits, 128 images, 10 % wrong labels, 2 epochs." in notes
    assert not any("missing" in note for note in notes)


# report, without training


def test_report_rebuilds_a_table(whole, capsys):
    out = whole
    names = ["report.html", "one/report.html", "two/results.json"]
    for name in names:
        (out / name).unlink()
    assert main(["report", str(out)]) == 0
    assert "SAM+Info*" in capsys.readouterr().out
    assert all((out / name).exists() for name in names)
    page = (whole / "report.html").read_text()
    assert re.findall(r'href="([^"]+/report.html)"', page) == ["one/report.html", "two/report.html"]


def test_report_rebuilds_a_comparison(whole, tmp_path, capsys):
    block = tmp_path / "block"
    for path in (whole / "two").rglob("*.json*"):
        target = block / path.relative_to(whole / "two")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    (block / "report.html").unlink(missing_ok=True)
    assert main(["report", str(block)]) == 0
    comparison = read(block / "results.json")
    assert [(r["name"], r["seeds"]) for r in comparison["rows"]] == [("sam", [0, 1]), ("sam+info*", [0, 1])]
    assert comparison["complete"]
    (block / "runs" / "sam" / "seed-1" / "result.json").unlink()
    assert main(["report", str(block)]) == 0
    assert not read(block / "results.json")["complete"]
    assert (block / "report.html").exists()
    capsys.readouterr()
    assert main(["report", str(tmp_path)]) == 2
    assert "has no results. Use the folder (--out) of" in capsys.readouterr().err


OWN_METHOD = """
from dataclasses import dataclass
from ausam import SAM

@dataclass(frozen=True)
class Mine(SAM):
    pass
"""


def test_a_recipe_of_the_users_own_with_a_method_of_the_users_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text(
        'title = "Mine"\nseeds = 1\n[settings]\nepochs = 1\ntrain_size = 64\ntest_size = 20\nthreads = 1\n'
        '[[block]]\nname = "one"\ncolumn = "digits"\nsettings = { rho = 0.1 }\nextra = ["sam", "own_method.py:Mine"]\n'
    )
    (tmp_path / "own_method.py").write_text(OWN_METHOD)
    assert main(["reproduce", "own.toml"]) == 0
    assert "own_method.py:Mine" in capsys.readouterr().out
    assert main(["report", "runs/own"]) == 0
    assert "own_method.py:Mine" in capsys.readouterr().out
    assert main(["reproduce", "absent.toml"]) == 2
    assert "absent.toml cannot be read" in capsys.readouterr().err


def test_a_process_of_a_cluster_knows_the_papers_networks(tmp_path):
    """It has imported nothing but the function that it runs, here without Ray."""
    code = (
        "from pathlib import Path; from ausam_lab.config import Config; "
        "from ausam_lab.experiments.cells import Cell; from ausam_lab.paper.ray import _cell; "
        'config = Config(device="cpu", model="wrn10-2", epochs=1, batch_size=8, train_size=16, test_size=100); '
        'print(_cell(Cell("one", "sam", config), Path("out"), "."))'
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True, check=True)
    assert done.stdout.startswith("accuracy "), done.stdout
