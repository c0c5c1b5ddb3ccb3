"""A checkpoint brings what was learnt; the settings are the run's own, and wrong entries are a sentence."""

import pytest
import torch

from ausam_lab.data.catalogue import resolve
from ausam_lab.training import checkpoint
from ausam_lab.training.loop import train
from tests.lab.helpers import read

BASE = {"epochs": 3, "train_size": 128, "test_size": 50, "threads": 1, "policy": "ausampling"}


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    out = tmp_path_factory.mktemp("calm") / "run"
    list(train(resolve(**BASE), out))
    return read(out / "result.json")["weights_sha256"]


@pytest.fixture
def begun(tmp_path):
    """A run after one epoch, and a function that changes its checkpoint."""
    epochs = train(resolve(**BASE), tmp_path / "run")
    next(epochs)
    epochs.close()
    path = checkpoint.newest_first(tmp_path / "run")[0]

    def change(edit):
        content = torch.load(path, weights_only=True)
        edit(content)
        torch.save(content, path)

    return tmp_path / "run", change


def in_group(**settings):
    return lambda content: content["optimizer"]["param_groups"][0].update(settings)


@pytest.mark.parametrize(
    "edit",
    [
        in_group(momentum=5.0),
        in_group(momentum="x"),
        in_group(weight_decay=9.0, maximize=True),
        in_group(rho=7.0),
        in_group(rho="x"),
        in_group(lr=3.0),
        lambda content: content["sampler"].update(seed=5),
    ],
)
def test_the_settings_of_the_run_win(begun, calm, edit):
    out, change = begun
    change(edit)
    list(train(resolve(**BASE), out, resume=True))
    assert read(out / "result.json")["weights_sha256"] == calm


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda content: content["optimizer"]["ausam"].update(steps="x"), "its steps is 'x'"),
        (lambda content: content["optimizer"]["ausam"].update(skipped=-1), "its skipped is -1"),
        (
            lambda content: content["optimizer"]["state"][0].update(momentum_buffer=torch.zeros(3)),
            r"momentum_buffer of parameter 0 has shape \(3,\)",
        ),
        (lambda content: content["optimizer"].pop("ausam"), "ausam"),
        (lambda content: content["sampler"].update(epoch=99), "sampler is at epoch 99"),
        (lambda content: content["sampler"].update(epoch="x"), "sampler is at epoch x"),
    ],
)
def test_wrong_entries_are_a_sentence(begun, edit, message):
    out, change = begun
    change(edit)
    with pytest.raises(ValueError, match=f"checkpoint-00001.pt does not fit this run: .*{message}.*Remove that file"):
        list(train(resolve(**BASE), out, resume=True))
