"""Forecasting: ETT's files and splits, the score where lower is better, whole runs on a file made here."""

import json
import math

import numpy as np
import pytest
import torch

from ausam_lab.data import catalogue
from ausam_lab.data.catalogue import problem, resolve, training_samples
from ausam_lab.data.download import DownloadError
from ausam_lab.data.sources import ett
from ausam_lab.data.windows import Forecasting
from ausam_lab.training.loop import train
from tests.lab.helpers import load, read, run

QUICK = ["--data", "etth2", "--train-stride", 60, "--test-size", 40, "--batch-size", 32, "--threads", 1]


@pytest.fixture(autouse=True)
def fresh():
    catalogue.forget()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A file in ETT's format, as long as ETTh2: daily waves with noise, every series on its own level."""
    rng = np.random.default_rng(0)
    t = np.arange(17_420)
    waves = [5 * c + np.sin(2 * np.pi * (t + 3 * c) / 24) * (1 + c) for c in range(7)]
    values = np.stack(waves, 1) + 0.3 * rng.standard_normal((len(t), 7))
    folder = tmp_path_factory.mktemp("data")
    lines = [f"2016-07-01 {i},{','.join(map(repr, row))}" for i, row in enumerate(values.tolist())]
    (folder / "ETTh2.csv").write_text("\n".join([ett.HEADER, *lines]) + "\n")
    return folder, values


def test_the_official_splits(made):
    folder, values = made
    data = load("etth2", str(folder))
    mean, std = values[:8640].mean(0), values[:8640].std(0)
    assert (len(data.train_y), len(data.test_y)) == (8640 - 512 - 96 + 1, 2880 - 96 + 1)
    x, y = next(data.test_batches(1))
    start = 16 * 30 * 24 - 512
    expected = ((values[start : start + 608] - mean) / std).T
    np.testing.assert_allclose(x[0], expected[:, :512], atol=1e-5)
    np.testing.assert_allclose(y[0], expected[:, 512:], atol=1e-5)
    *_, (_, last) = data.test_batches()
    np.testing.assert_allclose(last[-1], ((values[14400 - 96 : 14400] - mean) / std).T, atol=1e-5)
    *_, (_, last) = data.plain_batches()
    np.testing.assert_allclose(last[-1], ((values[8640 - 96 : 8640] - mean) / std).T, atol=1e-5)


@pytest.mark.parametrize(
    "flags", [{}, {"train_stride": 7}, {"train_size": 50}, {"train_stride": 3, "train_size": 20, "validation": 0.5}]
)
def test_the_number_of_samples_is_known_before_the_data_is_here(made, flags):
    config = resolve(data="etth2", data_dir=str(made[0]), **flags)
    assert training_samples(config) == len(problem(config).train_y)
    config = resolve(data="digits", imbalance=0.1, validation=0.2)
    assert training_samples(config) == pytest.approx(len(problem(config).train_y), rel=0.05)


def test_every_nth_window_and_another_horizon(made):
    folder, _ = made
    whole, some = load("etth2", str(folder), horizon=24), load("etth2", str(folder), horizon=24, train_stride=7)
    assert whole.answer == (7, 24)
    assert torch.equal(some.train_y, whole.train_y[::7])
    assert torch.equal(some.test_y, whole.test_y)
    assert len(load("etth2", str(folder), train_size=100).train_y) == 100


def test_validation_is_the_official_part(made):
    folder, values = made
    data = load("etth2", str(folder), validation=0.2)
    assert (len(data.train_y), len(data.test_y), data.evaluated_on) == (8033, 2785, "validation")
    *_, (_, last) = data.test_batches()
    expected = (values[11520 - 96 : 11520] - values[:8640].mean(0)) / values[:8640].std(0)
    np.testing.assert_allclose(last[-1], expected.T, atol=1e-5)


def test_the_score_is_the_mean_over_all_numbers():
    task = Forecasting()
    y = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0))
    batches = [(torch.zeros(n, 2, 4), part) for n, part in ((3, y[:3]), (2, y[3:]))]
    score = task.score(lambda x: torch.ones(len(x), 2, 3), batches)
    errors = [1 - v for v in y.flatten().tolist()]
    assert score.value == pytest.approx(sum(e * e for e in errors) / 30)
    assert score.parts == pytest.approx({"MAE": sum(map(abs, errors)) / 30})
    assert score.lower_is_better
    assert str(score) == f"MSE {score.value:.4f}"
    each = task.losses(torch.ones_like(y), y, 0.0)
    assert each.tolist() == pytest.approx([sum((1 - v) ** 2 for v in part.flatten().tolist()) / 6 for part in y])
    with pytest.raises(ValueError, match="training diverged"):
        task.score(lambda x: torch.full((len(x), 2, 3), math.inf), batches)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"label_noise": 0.1}, "label_noise is 0.1, but etth2 has numbers to forecast, not labels"),
        ({"imbalance": 0.1}, "imbalance is 0.1, but etth2 has numbers to forecast, not classes"),
        (
            {"augment": "standard"},
            "augment is standard, which forecasting etth2 does not support. Use --augment none",
        ),
        ({"label_smoothing": 0.1}, "label_smoothing is 0.1, which forecasting etth2 does not support"),
        ({"horizon": 2881}, "horizon is 2881, but etth2 allows at most 2880 steps ahead"),
    ],
)
def test_what_forecasting_does_not_know_is_refused(made, wanted, message):
    with pytest.raises(ValueError, match=message):
        load("etth2", str(made[0]), **wanted)


def test_other_data_has_no_horizon():
    with pytest.raises(ValueError, match=r"train_stride is 2, but digits is not a forecasting problem"):
        load("digits", train_stride=2)


def test_files_that_are_not_the_published_ones(made, tmp_path):
    folder, _ = made
    text = (folder / "ETTh2.csv").read_text()
    with pytest.raises(DownloadError, match=r"ETTh2.csv is not in .*its digest is unknown. Get it from https"):
        load("etth2", str(tmp_path))
    (tmp_path / "ett").mkdir()
    copy = tmp_path / "ett" / "ETTh2.csv"
    for content in (text.replace("HUFL", "LOAD"), text[: len(text) // 2] + "\n", text + text.splitlines()[1] + "\n"):
        copy.write_text(content)
        catalogue.forget()
        with pytest.raises(ValueError, match=r"ETTh2.csv is (damaged|not ETTh2)"):
            load("etth2", str(tmp_path))
    copy.write_text(text.replace(text.splitlines()[1].split(",")[1], "nan", 1))
    with pytest.raises(ValueError, match="not finite"):
        load("etth2", str(tmp_path))
    copy.write_text(text)
    assert torch.equal(load("etth2", str(tmp_path)).series, load("etth2", str(folder)).series)
    (tmp_path / "ETTh1.csv").write_text(text)
    with pytest.raises(DownloadError, match=r"ETTh1.csv is not the published file: its sha256 is"):
        load("etth1", str(tmp_path))


def test_a_comparison_reads_lower_as_better(made, tmp_path, capsys):
    flags = [*QUICK, "--data-dir", made[0], "--epochs", 2, "--seeds", 2]
    assert run("compare", "sgd", "sam", *flags, "--out", tmp_path / "c") == 0
    out = capsys.readouterr().out
    assert "MSE (lower is better)" in out
    assert "MAE" in out
    assert "Lower MSE is better." in out
    results = read(tmp_path / "c" / "results.json")
    assert [row["lower_is_better"] for row in results["rows"]] == [True] * 2
    assert results["rows"][0]["label"] == "Adam"
    page = (tmp_path / "c" / "report.html").read_text()
    assert "Down and left is better." in page
    assert "96 steps ahead" in page
    best = min(sum(row["scores"]) / 2 for row in results["rows"])
    assert f"<b>{best:.4f}" in page
    assert ",MSE,,lower," in (tmp_path / "c" / "results.csv").read_text()


def test_a_run_that_was_killed_ends_with_equal_weights(made, tmp_path):
    config = resolve(
        data="etth2", data_dir=str(made[0]), train_stride=60, test_size=40, batch_size=32, epochs=3, threads=1,
        method="SAM", policy="AUSampling(alpha=0.5)",
    )  # fmt: skip
    whole = list(train(config, tmp_path / "whole"))
    begun = train(config, tmp_path / "killed")
    next(begun)
    begun.close()
    rest = list(train(config, tmp_path / "killed", resume=True))
    assert [e.test for e in rest] == [e.test for e in whole[1:]]
    one, other = (json.loads((tmp_path / which / "result.json").read_text()) for which in ("whole", "killed"))
    assert one["weights_sha256"] == other["weights_sha256"]
    assert whole[-1].test.value < whole[0].test.value  # it learns


def test_networks_that_do_not_fit_are_refused(made, tmp_path, capsys):
    assert run("train", *QUICK, "--data-dir", made[0], "--model", "resnet-tiny", "--out", tmp_path / "run") == 2
    assert "resnet-tiny cannot take a batch of shape (2, 7, 512)" in capsys.readouterr().err
