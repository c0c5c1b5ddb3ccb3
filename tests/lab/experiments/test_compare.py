"""Comparisons: tables, interruption, the page."""

import pytest

from ausam_lab.cli.main import main
from ausam_lab.data.catalogue import resolve
from ausam_lab.experiments import compare
from ausam_lab.names.from_config import configured
from tests.lab.helpers import read

SMALL = ["--seeds", "2", "--epochs", "2", "--train-size", "256", "--test-size", "100", "--threads", "1"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare")
    assert main(["compare", "sgd", "sam", "sam@0.5x0.5", "ausam-0.5", *SMALL, "--out", str(out)]) == 0
    return out


def test_results_agree_with_the_single_runs(compared):
    results = read(compared / "results.json")
    assert results["complete"]
    assert [r["name"] for r in results["rows"]] == ["sgd", "sam", "sam@0.5x0.5", "ausam-0.5"]
    assert len(results["runs"]) == 8
    for row in results["rows"]:
        single = [read(compared / "runs" / row["name"] / f"seed-{s}" / "result.json") for s in (0, 1)]
        assert row["scores"] == [r["test"]["value"] for r in single]
        assert row["metric"] == "accuracy"
        assert row["seeds"] == [0, 1]
    rows = {r["name"]: r for r in results["rows"]}
    passed = {name: row["samples_forward"] + row["samples_backward"] for name, row in rows.items()}
    assert passed["sgd"] == passed["sam@0.5x0.5"] == passed["sam"] / 2 == 4 * 256
    assert passed["ausam-0.5"] == 6 * 256  # a whole first epoch and half of the second
    assert rows["sam"]["speed_of_sam"] == 100.0
    steps = {r["name"]: r["run"]["steps"] for r in results["runs"]}
    assert steps["sam@0.5x0.5"] == steps["ausam-0.5"] == 8  # 4 mini-batches of 64 in each of two epochs
    curve = results["runs"][0]["curve"]
    assert [point["epoch"] for point in curve] == [1, 2]
    for one in results["runs"]:
        environment = one["run"]["environment"]
        assert all(environment["hardware"][k] for k in ("cpu", "threads"))
        assert all(environment["versions"][k] for k in ("system", "python", "torch", "ausam"))
        assert one["run"]["cpu_seconds"] > 0
    assert results["seeds"] == [0, 1]
    assert results["config"]["label_noise"] == 0.2


def test_the_page_stands_beside_the_results(compared):
    page = (compared / "report.html").read_text()
    assert "AUSAM-0.5" in page
    assert page.count('<figure class="chart">') == 2
    assert 'href="runs/sam%400.5x0.5/seed-1/"' in page
    assert "default-src 'none'" in page  # nothing is fetched from anywhere


def test_again_does_nothing_and_says_the_same(compared, capsys):
    times = {p: p.stat().st_mtime_ns for p in compared.rglob("result.json")}
    assert main(["compare", "sgd", "sam", "sam@0.5x0.5", "ausam-0.5", *SMALL, "--out", str(compared)]) == 0
    assert {p: p.stat().st_mtime_ns for p in compared.rglob("result.json")} == times
    assert "AUSAM-0.5" in capsys.readouterr().out


def test_an_interrupted_comparison_goes_on_where_it_stopped(compared, tmp_path, monkeypatch, capsys):
    args = ["compare", "sgd", "sam", "ausam-0.5", *SMALL, "--out", str(tmp_path)]
    original = compare.train
    epochs = 0

    def interrupted(*a, **k):
        nonlocal epochs
        for row in original(*a, **k):
            epochs += 1
            if epochs == 4:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(compare, "train", interrupted)
    assert main(args) == 130
    assert "Finished work is kept" in capsys.readouterr().err
    monkeypatch.setattr(compare, "train", original)
    assert main(args) == 0
    mine, theirs = (
        {(r["name"], r["run"]["seed"]): r["run"]["weights_sha256"] for r in read(out / "results.json")["runs"]}
        for out in (tmp_path, compared)
    )
    assert len(mine) == 6
    assert mine == {k: v for k, v in theirs.items() if k in mine}


def test_another_comparison_in_the_folder_is_refused(compared, capsys):
    assert main(["compare", "sgd", *SMALL, "--lr", "0.5", "--out", str(compared)]) == 2
    assert "holds another run: lr 0.05 there, 0.5 here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sgdd", 'There is no pair "sgdd". Did you mean sgd?'),
        ("sam@0.5x0", "batch is 0"),
        ("sam@0", "epochs is 0"),
        ("sgd+ausampling", "AUSampling ranks samples by sharpness, but Plain never evaluates"),
        ("SAM + AUSampling(1.5)", "alpha is 1.5"),
    ],
)
def test_bad_names_are_refused_before_anything_runs(tmp_path, capsys, name, message):
    assert main(["compare", "sam", name, *SMALL, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_runs_of_a_seed_take_turns_in_random_order_and_results_are_written_once_a_seed(tmp_path, monkeypatch):
    """On a machine that is slow for a while, every pair is slow for as long."""
    calls, written = [], []

    def epochs(config, folder, **_):
        for _ in range(4):
            calls.append((config.seed, folder.parent.name))
            yield object()

    monkeypatch.setattr(compare, "train", epochs)
    monkeypatch.setattr(compare, "collect", lambda *_: "results")
    monkeypatch.setattr(compare, "write", lambda results, out: written.append(out) or results)
    names = ["sgd", "sam", "gsam", "ausam-0.5"]
    runs = {name: configured(name, resolve()) for name in names}
    assert compare.compare(runs, [3, 4], resolve(), tmp_path, "", lambda *_: None) == "results"
    assert written == [tmp_path, tmp_path]
    rounds = [calls[i : i + 4] for i in range(0, len(calls), 4)]
    assert [{seed for seed, _ in turn} for turn in rounds] == [{3}] * 4 + [{4}] * 4
    assert all({name for _, name in turn} == set(names) for turn in rounds)  # one epoch each before the next
    orders = [tuple(name for _, name in turn) for turn in rounds]
    assert len(set(orders)) > 2  # not always the same pair first
    assert len({order[0] for order in orders}) > 1


def test_smaller_batches_for_every_method_and_base(tmp_path):
    """SGD and Adam get what SAM gets: half the batch, or half the epochs and a quarter of the batch."""
    few = ["--seeds", "1", "--epochs", "2", "--train-size", "64", "--test-size", "20", "--threads", "1"]
    names = ["sgd@1x0.5", "sgd@0.5x0.25", "sam@0.5x0.5"]
    assert main(["compare", *names, *few, "--base", "adam", "--lr", "0.001", "--out", str(tmp_path)]) == 0
    results = read(tmp_path / "results.json")
    assert [row["label"] for row in results["rows"]] == [
        "Adam (half batch)",
        "Adam (half the epochs, batch × 0.25)",
        "SAM (half the epochs, half batch)",
    ]
    settings = [(one["run"]["config"]["epochs"], one["run"]["config"]["batch_size"]) for one in results["runs"]]
    assert settings == [(2, 32), (1, 16), (1, 32)]
