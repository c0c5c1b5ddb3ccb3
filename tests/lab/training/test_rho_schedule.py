"""A radius that changes over a run of the lab."""

import math

import pytest

from ausam_lab.data.catalogue import resolve
from ausam_lab.names.from_config import configured
from ausam_lab.training import checkpoint
from ausam_lab.training.loop import train

FEW = {"train_size": 128, "test_size": 50, "batch_size": 64, "threads": 1, "epochs": 4, "rho": 0.4}


def group(out):
    """The parameter group as the last step left it."""
    return checkpoint.load(out).optimizer["param_groups"][0]


@pytest.mark.parametrize(
    ("shape", "part"),
    [("linear", 1 - 3.5 / 4), ("cosine", (1 + math.cos(math.pi * 3.5 / 4)) / 2), ("lr", 0.01)],
)
def test_the_radius_of_the_last_step(tmp_path, shape, part):
    """Two batches per epoch, so the last begins after 3.5 of 4 epochs; "lr" with a rate that fell by 100."""
    config = resolve(**FEW, rho_schedule=shape, lr_steps="0.5,0.75")
    list(train(config, tmp_path / "run"))
    assert group(tmp_path / "run")["rho"] == pytest.approx(0.4 * part)


def test_what_has_no_radius_has_no_schedule():
    config = resolve(**FEW, rho_schedule="linear")
    shapes = {name: configured(name, config).rho_schedule for name in ("sgd", "mesa", "sam", "late-sam-0.1", "ae-sam")}
    assert shapes == {
        "sgd": "constant",
        "mesa": "constant",
        "sam": "linear",
        "late-sam-0.1": "linear",
        "ae-sam": "linear",
    }
