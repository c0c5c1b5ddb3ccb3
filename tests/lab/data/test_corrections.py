"""--labels: corrected labels and removed samples reach the training, whatever else a run does to its data."""

import pytest
import torch

from ausam.audit.review import write_labels
from ausam_lab.data.catalogue import problem, resolve
from ausam_lab.records.comparison import Comparison
from ausam_lab.records.store import read_finished
from ausam_lab.report.summary import compare_rows
from tests.lab.helpers import run


def test_labels_replace_and_remove(tmp_path):
    before = problem(resolve(data="digits", label_noise=0.2, train_size=200))
    fixed, gone = before.origin[3].item(), before.origin[5].item()
    file = tmp_path / "labels.csv"
    file.write_text(f"index,label\n{fixed},{(before.train_y[3] + 1) % 10}\n{gone},-1\n")
    after = problem(resolve(data="digits", label_noise=0.2, train_size=200, labels=str(file)))
    assert len(after.train_y) == 199
    assert gone not in after.origin.tolist()
    assert after.train_y[3] == (before.train_y[3] + 1) % 10
    assert not after.wrong[3]
    same = [i for i in range(200) if i not in (3, 5)]
    moved = [after.origin.tolist().index(before.origin[i].item()) for i in same]
    torch.testing.assert_close(after.train_y[moved], before.train_y[same])
    torch.testing.assert_close(after.train_x[moved], before.train_x[same])
    assert torch.equal(after.wrong[moved], before.wrong[same])


@pytest.mark.parametrize(
    ("rows", "said"),
    [("0,10", "classes 0 to 9"), ("999999,1", "does not have"), ("0,-2", "-1 for a removed")],
)
def test_a_file_of_other_data_is_refused(tmp_path, rows, said):
    file = tmp_path / "labels.csv"
    file.write_text(f"index,label\n{rows}\n")
    with pytest.raises(ValueError, match=said):
        problem(resolve(data="digits", labels=str(file)))


def test_correcting_all_wrong_labels_is_training_on_right_ones(tmp_path):
    noisy = problem(resolve(data="digits", label_noise=0.2, train_size=200))
    right = problem(resolve(data="digits", label_noise=0, train_size=200, data_seed=0))
    wrong = noisy.wrong.nonzero().flatten()
    (tmp_path / "labels.csv").write_text(write_labels(noisy.origin[wrong], right.train_y[wrong]))
    corrected = problem(resolve(data="digits", label_noise=0.2, train_size=200, labels=str(tmp_path / "labels.csv")))
    assert torch.equal(corrected.train_y, right.train_y)
    assert not corrected.wrong.any()


def test_a_run_trains_with_them_and_resumes(tmp_path):
    file = tmp_path / "labels.csv"
    file.write_text("index,label\n0,1\n1,-1\n")
    small = ("--train-size", 100, "--test-size", 50, "--threads", 1, "--out", tmp_path / "run", "--labels", file)
    assert run("train", "sgd", "--epochs", 1, *small) == 0
    assert run("train", "sgd", "--epochs", 2, *small[:-2]) == 2  # another labels is another run


def test_before_and_after_stand_side_by_side(tmp_path, capsys):
    noisy = problem(resolve(data="digits", label_noise=0.4, train_size=200, data_seed=0))
    right = problem(resolve(data="digits", label_noise=0, train_size=200, data_seed=0))
    (file := tmp_path / "labels.csv").write_text(write_labels(noisy.origin, right.train_y))
    small = ("--train-size", 200, "--label-noise", 0.4, "--data-seed", 0, "--model", "mlp", "--threads", 1)
    command = (
        "compare",
        "sgd",
        "--epochs",
        8,
        "--seeds",
        2,
        *small,
        "--out",
        tmp_path / "out",
        "--labels",
        "given",
        file,
    )
    assert run(*command) == 0
    said = capsys.readouterr().out
    after = f"SGD ({file})"
    assert f"{after} has the best" in " ".join(said.split())
    rows = {row.label: row for row in read_finished(tmp_path / "out" / "results.json", Comparison).rows}
    assert set(rows) == {"SGD (labels as given)", after}
    assert rows[after].mean > rows["SGD (labels as given)"].mean + 2
    gain = compare_rows(read_finished(tmp_path / "out" / "results.json", Comparison))
    assert [(one.label, rival.label) for one, rival, _ in gain] == [(after, "SGD (labels as given)")]
    assert gain[0][2].mean == pytest.approx(rows[after].mean - rows["SGD (labels as given)"].mean)
    assert run("report", tmp_path / "out") == 0  # from the runs alone
    assert after in capsys.readouterr().out
    file.write_text(file.read_text().replace(",3\n", ",4\n"))
    assert run(*command) == 2  # the runs were trained on other labels
    assert "has changed" in capsys.readouterr().err


def test_a_file_of_labels_is_compared_once(tmp_path, capsys):
    file = tmp_path / "labels.csv"
    file.write_text("index,label\n0,1\n")
    assert run("compare", "sgd", "--epochs", 1, "--out", tmp_path / "out", "--labels", file, file) == 2
    assert "twice" in capsys.readouterr().err
    file.write_text("index,label\n0,10\n")  # found before anything is trained
    assert run("compare", "sgd", "--epochs", 1, "--out", tmp_path / "out", "--labels", "given", file) == 2
    assert "classes 0 to 9" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
