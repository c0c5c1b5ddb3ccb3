"""A run that was stopped continues bit for bit, whatever its settings."""

import pytest

from ausam_lab.data.catalogue import resolve
from ausam_lab.training import weights
from ausam_lab.training.loop import finish, train
from tests.lab.helpers import without_times

SMALL = {"train_size": 96, "test_size": 40, "epochs": 4, "batch_size": 32, "threads": 1, "label_noise": 0.3}
DIGESTS = {}


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "ausampling", "augment": "cutout"},
        {"average": 0.9},
        {"select_epoch": 0.25},
        {"average": 0.9, "select_epoch": 0.25},
        {"rho_schedule": "cosine"},
        {"rho_schedule": "cosine", "method": "aesam"},
        {"rho_schedule": "cosine", "method": "PreviousGradientSAM"},
        {"policy": "ausampling", "amp": "bf16"},
        {"policy": "ausampling", "amp": "fp16"},
        {"method": "esam", "model": "resnet-small-w8"},
        {"method": "friendlysam", "memory_format": "contiguous"},
        {"method": "mesa(start=0)", "model": "resnet-small-w8"},
    ],
    ids=str,
)
def test_a_stopped_run_continues_bit_for_bit(tmp_path, settings):
    config = resolve(**SMALL | settings)
    whole = finish(train(config, tmp_path / "whole"))
    for _ in range(2):
        epochs = train(config, tmp_path / "parts", resume=True)
        next(epochs)
        epochs.close()
    parts = finish(train(config, tmp_path / "parts", resume=True))
    for field in ("weights_sha256", "test", "train", "best_epoch", "samples_forward", "samples_backward", "audit"):
        assert getattr(parts, field) == getattr(whole, field), field
    assert without_times(tmp_path / "parts") == without_times(tmp_path / "whole")
    assert weights.sha256(weights.read(tmp_path / "whole")) == whole.weights_sha256  # what --init takes
    assert DIGESTS.setdefault(whole.weights_sha256, settings) == settings  # every setting has an effect
