"""What is done to the samples of labelled data: long tails, validation samples, and their order."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from ausam_lab.config import Config
from ausam_lab.data.catalogue import DATASETS, problem
from ausam_lab.data.classification import Classification
from ausam_lab.data.datasets import from_datasets
from ausam_lab.data.labels import long_tail, with_validation
from tests.lab.helpers import load, read, run

FLAGS = ["--data", "digits", "--label-noise", 0, "--epochs", 1, "--threads", 1]


def numbers(counts):
    """Labels with so many of each class, mixed."""
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=2, max_size=6).filter(sum), st.floats(0.001, 0.999))
def test_a_long_tail_keeps_what_the_formula_says(counts, ratio):
    y = numbers(counts)
    kept = long_tail(y, len(counts), ratio)
    assert kept.tolist() == sorted(set(kept.tolist()))
    for c, n in enumerate(counts):
        expected = max(1, round(n * ratio ** (c / (len(counts) - 1)))) if n else 0
        assert int((y[kept] == c).sum()) == expected
    assert set(kept.tolist()) <= set(long_tail(y, len(counts), min(1.0, 2 * ratio)).tolist())


def test_long_tailed_digits():
    data, whole = load("digits", imbalance=0.05), load("digits")
    before, after = whole.train_y.bincount(), data.train_y.bincount()
    assert after.tolist() == [max(1, round(int(n) * 0.05 ** (c / 9))) for c, n in enumerate(before)]
    assert 300 < len(data.train_y) < 360
    assert torch.equal(data.test_y, whole.test_y)
    for off in (0, 1):
        assert torch.equal(load("digits", imbalance=off).train_y, whole.train_y)
        assert load("digits", imbalance=off).task == Classification()


def test_the_order_is_validation_sizes_tail_noise():
    held = load("digits", validation=0.2)
    assert (len(held.train_y), len(held.test_y)) == (799, 201)
    all_of_it = load("digits", validation=0.2, train_size=500, imbalance=0.1, label_noise=0.3)
    assert torch.equal(all_of_it.test_x, held.test_x)  # the same samples, whatever else is asked for
    assert torch.equal(all_of_it.test_y, held.test_y)  # with clean labels
    fewer = load("digits", validation=0.2, train_size=500)
    tail = load("digits", validation=0.2, train_size=500, imbalance=0.1)
    assert torch.equal(tail.train_x, fewer.train_x[long_tail(fewer.train_y, 10, 0.1)])
    assert torch.equal(all_of_it.train_x, tail.train_x)
    assert (
        int(all_of_it.wrong.sum()) == round(0.3 * len(tail.train_y)) == int((all_of_it.train_y != tail.train_y).sum())
    )


def test_validation_samples_are_training_samples_and_the_test_set_is_out_of_sight():
    data, whole = load("digits", validation=0.25), load("digits")
    rows = {tuple(x.flatten().tolist()) for x in whole.train_x}
    mine, held = ([tuple(x.flatten().tolist()) for x in part] for part in (data.train_x, data.test_x))
    assert sorted(mine + held) == sorted(tuple(x.flatten().tolist()) for x in whole.train_x)
    assert set(held) <= rows
    assert data.test_y.bincount().tolist() == [round(0.25 * int(n)) for n in whole.train_y.bincount()]


def test_validation_leaves_every_class_something_to_learn():
    one = TensorDataset(torch.randn(9, 2), torch.tensor([0] * 8 + [1]))
    data = from_datasets("mine", one, one)
    made = with_validation(data, 0.5)
    assert made.train_y.bincount().tolist() == [4, 1]
    assert made.test_y.tolist() == [0] * 4
    x, y = made.test[0]
    assert any(torch.equal(x, one[i][0]) and y == one[i][1] for i in range(9))
    with pytest.raises(ValueError, match="holds out none of the 9 training samples of mine"):
        with_validation(data, 0.01)


def fixed(answers):
    """A network that answers these classes, whatever it is shown."""
    z = torch.nn.functional.one_hot(torch.tensor(answers), 5).float()
    return lambda x: z[x.long().flatten()]


def test_balanced_accuracy_against_a_slow_twin():
    y = [0, 0, 0, 0, 1, 1, 2, 2, 4, 4]  # no test sample of class 3
    answers = [0, 0, 0, 1, 1, 0, 2, 2, 4, 0]
    batches = [(torch.arange(10)[i : i + 3], torch.tensor(y[i : i + 3])) for i in range(0, 10, 3)]
    score = Classification(5).score(fixed(answers), batches)
    each = {}
    for truth, answer in zip(y, answers, strict=True):
        each.setdefault(truth, []).append(100.0 * (truth == answer))
    each = {c: sum(v) / len(v) for c, v in each.items()}
    assert each == {0: 75.0, 1: 50.0, 2: 100.0, 4: 50.0}
    assert score.value == pytest.approx(70.0)
    expected = {"balanced": 68.75, "head": 62.5, "middle": 100.0, "tail": 50.0}  # classes 0 1, 2 3, 4
    assert score.parts == pytest.approx(expected)
    assert Classification().score(fixed(answers), batches).parts == {}


def test_a_run_says_what_it_was_evaluated_on(tmp_path):
    flags = [*FLAGS, "--imbalance", 0.1, "--validation", 0.2]
    assert run("compare", "sgd", "ausam-0.5", *flags, "--seeds", 1, "--out", tmp_path / "c") == 0
    results = read(tmp_path / "c" / "results.json")
    assert results["title"] == "digits, long tail 0.1"
    assert {run["run"]["test"]["name"] for run in results["runs"]} == {"validation accuracy"}
    assert {run["run"]["train"]["name"] for run in results["runs"]} == {"accuracy"}


DRAWS = {"label_noise": 0.2, "imbalance": 0.1, "validation": 0.2, "train_size": 500}


@pytest.mark.parametrize("draw", DRAWS)
def test_seeds_draw_wrong_labels_tails_and_splits(draw):
    def drawn(**settings):
        data = problem(Config(device="cpu", **{draw: DRAWS[draw]}, **settings))
        return data.train_x.flatten().tolist(), data.train_y.tolist(), data.test_y.tolist()

    assert drawn(seed=1) != drawn(seed=2)
    assert drawn(seed=1) == drawn(seed=2, data_seed=1) == drawn(seed=1)
    assert drawn(seed=3, data_seed=0) == drawn(seed=0)


def test_without_draws_all_seeds_share_one_data_set_which_is_read_once(monkeypatch):
    reads = []
    known = DATASETS["digits"]
    monkeypatch.setitem(DATASETS, "digits", replace(known, load=lambda where: reads.append(where) or known.load(where)))
    assert problem(Config(device="cpu", seed=1)).train_x is problem(Config(device="cpu", seed=2)).train_x
    for seed in (1, 2, 1):
        problem(Config(device="cpu", seed=seed, label_noise=0.2))
    assert len(reads) == 1


def test_likelihood_and_calibration_error_against_a_slow_twin():
    z = torch.randn(50, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 3
    y = torch.arange(50) % 4
    score = Classification().score(nn.Identity(), [(z[:20], y[:20]), (z[20:], y[20:])])
    nll, bins = 0.0, {}
    for row, label in zip(z.tolist(), y.tolist(), strict=True):
        total = sum(math.exp(v) for v in row)
        p = [math.exp(v) / total for v in row]
        nll -= math.log(p[label]) / 50
        confidence = max(p)
        (which,) = [b for b in range(15) if b / 15 < confidence <= (b + 1) / 15]
        bins.setdefault(which, []).append((p.index(confidence) == label) - confidence)
    assert score.nll == pytest.approx(nll)
    assert score.calibration_error == pytest.approx(100 * sum(abs(sum(gaps)) for gaps in bins.values()) / 50, abs=1e-6)


def test_a_network_that_diverged_has_no_likelihood():
    score = Classification().score(nn.Identity(), [(torch.full((3, 2), torch.nan), torch.zeros(3, dtype=torch.int64))])
    assert (score.nll, score.calibration_error) == (None, None)
