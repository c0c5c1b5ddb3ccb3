"""The lab: one run, its files, its resumption, and what bad input gets."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from ausam import Full, SelectiveBatchSampler
from ausam_lab.data.catalogue import resolve
from ausam_lab.networks.build import build
from ausam_lab.training import checkpoint
from ausam_lab.training.loop import finish, random_numbers, train
from ausam_lab.training.state import learning_rate
from tests.lab.helpers import load, read, run

ONE = ["--threads", "1"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """An AUSAM run of five epochs that nobody interrupts."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run("train", "--policy", "ausampling", "--ramp", 2, "--epochs", 5, "--out", out, *ONE) == 0
    return out


def test_a_run_leaves_everything_in_its_folder(undisturbed, capsys):
    result = read(undisturbed / "result.json")
    rows = [json.loads(line) for line in (undisturbed / "metrics.jsonl").read_text().splitlines()]
    assert read(undisturbed / "config.json") == result["config"]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5]
    assert result["test"] == rows[-1]["test"]
    assert result["train_seconds"] == rows[-1]["seconds"] == pytest.approx(sum_of_spent(rows))
    # The first epoch uses all 1,000; then 32 of 64 in each of 15 mini-batches and 20 of the last 40.
    assert [row["samples"] for row in rows] == [1000, 500, 500, 500, 500]
    assert result["samples_forward"] == result["samples_backward"] == 2 * (1000 + 4 * 500)
    assert result["method"] == "SAM(rho=0.2)"
    assert result["policy"] == "AUSampling(alpha=0.5, ramp=2)"
    assert (result["seed"], result["epochs"], len(result["weights_sha256"])) == (0, 5, 64)
    assert result["environment"]["versions"]["torch"] == torch.__version__
    assert result["environment"]["hardware"]["threads"] == 1
    assert len(list(undisturbed.glob("checkpoint-*.pt"))) == 2
    assert not list(undisturbed.glob("*.tmp"))


def sum_of_spent(rows):
    return sum(row["samples"] / row["images_per_second"] for row in rows)


def test_plain_and_full_is_ordinary_training(tmp_path):
    out = tmp_path / "run"
    code = run(
        "train", "--method", "plain", "--policy", "full", "--epochs", 2, "--label-smoothing", 0.1, "--out", out, *ONE
    )
    assert code == 0

    data = load("digits", "", 0.2)
    # The same operations in the same order, because rounding grows from step to step.
    model = build("resnet-tiny", 10, 1, seed=0).to(memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    order = SelectiveBatchSampler(1000, 64, Full(), seed=0)
    model.train()
    for epoch in range(2):
        for b, chosen in enumerate(order):
            opt.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * (epoch + b / 16) / 2)) / 2
            x = ((data.train_x[chosen] - data.mean[0]) / data.std[0]).contiguous(memory_format=torch.channels_last)
            opt.zero_grad()
            F.cross_entropy(model(x), data.train_y[chosen], label_smoothing=0.1, reduction="none").mean().backward()
            opt.step()
    model.eval()
    with torch.no_grad():
        right = model((data.test_x - data.mean[0]) / data.std[0]).argmax(1) == data.test_y
    result = read(out / "result.json")
    assert result["test"]["value"] == pytest.approx(100 * right.double().mean().item())
    saved = checkpoint.load(out)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(saved.model[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--method", "smm"], ["smm", "sam"]),
        (["--method", "sam(radius=1)"], ["radius", "rho"]),
        (["--rho", "-1"], ["rho is -1"]),
        (["--method", "plain", "--policy", "ausampling"], ["AUSampling", "Plain"]),
        (["--lr-steps", "1.5"], ["lr_steps", "0.8,0.95"]),
        (["--data", "cifar"], ["cifar10"]),
        (["--model", "zzz"], ["module:function"]),
        (["--amp", "fp16", "--nonfinite", "raise"], ["--nonfinite skip"]),
        (["--amp", "bf16", "--quantize", "4"], ["--amp off"]),
        (["--select-epoch", "0.001"], ["select_epoch is 0.001", "larger fraction"]),
        (["--method", "plain", "--rho-schedule", "linear"], ["Plain has no rho", "Leave out --rho-schedule"]),
    ],
)
def test_bad_input_is_one_clear_line_and_leaves_nothing(tmp_path, capsys, flags, words):
    assert run("train", "--epochs", 1, *flags, "--out", tmp_path / "run", *ONE) == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("ausam: ")
    assert all(word in error for word in words), error
    assert "Traceback" not in error
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_folder_is_never_taken_from_another_run(undisturbed, tmp_path, capsys):
    before = {p.name: p.read_bytes() for p in undisturbed.iterdir()}
    same = ["train", "--policy", "ausampling", "--ramp", 2, "--epochs", 5, "--out", undisturbed, *ONE]
    assert run(*same) == 2
    assert f"{undisturbed} already holds this run. Continue it with --resume" in capsys.readouterr().err
    assert run(*same, "--lr", 0.5, "--resume") == 2
    assert f"{undisturbed} holds another run: lr 0.05 there, 0.5 here" in capsys.readouterr().err
    assert run(*same, "--resume") == 0  # finished: nothing to do
    assert {p.name: p.read_bytes() for p in undisturbed.iterdir()} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("...")
    assert run("train", "--out", tmp_path / "mine", *ONE) == 2
    assert "is not empty, and there is no run in it" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc, where no folder can be made")
@pytest.mark.parametrize("command", [["train"], ["tune", "--over", "rho=0.1"], ["reproduce", "table1"]], ids=str)
def test_a_folder_that_cannot_be_made_is_refused(capsys, command):
    assert run(*command, "--out", "/proc/ausam/run") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("ausam: /proc/ausam/run")
    assert "Choose another --out" in error


def test_digits_are_1000_with_exactly_200_wrong_labels_and_797_clean_ones():
    clean, noisy = load("digits", "", 0.0), load("digits", "", 0.2)
    assert (len(noisy.train_y), len(noisy.test_y), noisy.classes, noisy.channels) == (1000, 797, 10, 1)
    assert (clean.train_y != noisy.train_y).tolist() == noisy.wrong.tolist()
    assert int(noisy.wrong.sum()) == 200
    assert clean.wrong is None
    assert torch.equal(clean.test_y, noisy.test_y)
    together = torch.cat([noisy.train_x, noisy.test_x]).flatten(1)
    from sklearn.datasets import load_digits

    assert sorted(map(tuple, (together * 16).int().tolist())) == sorted(
        map(tuple, load_digits().data.astype(int).tolist())
    )
    assert noisy.normalise(noisy.train_x).mean().abs() < 1e-5
    assert load("digits", "", 0.2).train_y.tolist() == noisy.train_y.tolist()


def test_random_numbers_of_a_run_are_its_own():
    torch.manual_seed(5)
    outer = torch.get_rng_state()
    state = torch.Generator().manual_seed(9).get_state()
    with random_numbers(state) as after:
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), outer)
    with random_numbers(after):
        second = torch.rand(3)
    expected = torch.Generator().manual_seed(9)
    assert torch.equal(torch.cat([first, second]), torch.cat([torch.rand(3, generator=expected) for _ in range(2)]))


def test_learning_rate_is_a_cosine_or_falls_in_steps():
    config = resolve(data="digits", epochs=210, lr=1e-3, lr_steps="0.81,0.9524")
    for epoch, expected in ((0, 1e-3), (169.99, 1e-3), (170, 1e-4), (199.5, 1e-4), (200, 1e-5), (209.9, 1e-5)):
        assert learning_rate(config, epoch) == pytest.approx(expected)
    cosine = resolve(data="digits", epochs=10, lr=0.4)
    for epoch, expected in ((0, 0.4), (5, 0.2), (7.5, 0.2 * (1 - 0.5**0.5)), (10, 0.0)):
        assert learning_rate(cosine, epoch) == pytest.approx(expected, abs=1e-12)


def test_a_training_returns_its_record(tmp_path):
    config, seen = resolve(epochs=2, train_size=64, test_size=20, threads=1), []
    run = finish(train(config, tmp_path), seen.append)
    assert [epoch.epoch for epoch in seen] == [1, 2]
    assert run.test == seen[-1].test
    assert finish(train(config, tmp_path, resume=True), seen.append) == run  # it has ended
    assert len(seen) == 2
