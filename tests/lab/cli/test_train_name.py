"""``ausam train NAME``: the run of a named pair, as a comparison would train it."""

from tests.lab.helpers import read, run


def test_a_name_stands_for_the_method_and_the_policy(tmp_path):
    few = ["--epochs", 2, "--threads", 1]
    assert run("train", "ASAM + AUSampling(alpha=0.5)", "--rho", 0.1, *few, "--out", tmp_path / "name") == 0
    apart = ["--method", "asam", "--rho", 0.1, "--policy", "ausampling(alpha=0.5)"]
    assert run("train", *apart, *few, "--out", tmp_path / "apart") == 0
    assert (
        run("compare", "ASAM + AUSampling(alpha=0.5)", "--rho", 0.1, "--seeds", 1, *few, "--out", tmp_path / "together")
        == 0
    )
    runs = [
        read(tmp_path / folder / "result.json")
        for folder in ("name", "apart", "together/runs/ASAM + AUSampling(alpha=0.5)/seed-0")
    ]
    assert len({result["weights_sha256"] for result in runs}) == 1


def test_a_part_of_the_epochs_and_a_resumed_run(tmp_path, capsys):
    assert run("train", "sam@0.5x0.5", "--epochs", 4, "--threads", 1, "--out", tmp_path) == 0
    assert "after 2 epochs" in capsys.readouterr().out
    assert run("train", "sam@0.5x0.5", "--epochs", 4, "--threads", 1, "--out", tmp_path, "--resume") == 0
    assert read(tmp_path / "result.json")["epochs"] == 2


def test_without_rho_the_name_and_the_method_have_the_same_one(tmp_path):
    """ASAM has its own; the data's is SAM's."""
    few = ["--epochs", 1, "--train-size", 64, "--threads", 1]
    assert run("train", "asam", *few, "--out", tmp_path / "name") == 0
    assert run("train", "--method", "asam", *few, "--out", tmp_path / "method") == 0
    assert run("compare", "sam", "asam", "--seeds", 1, *few, "--out", tmp_path / "together") == 0
    runs = [read(tmp_path / folder / "result.json") for folder in ("name", "method", "together/runs/asam/seed-0")]
    assert {result["method"] for result in runs} == {"ASAM(rho=0.5)"}
    assert read(tmp_path / "together/runs/sam/seed-0/result.json")["method"] == "SAM(rho=0.2)"
