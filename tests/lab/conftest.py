"""What several tests of the lab train once."""

import pytest

from ausam_lab.training.loop import train
from tests.lab.blobs import config


@pytest.fixture(scope="session")
def audited(tmp_path_factory):
    """The folder of a run on data with a tenth of wrong labels."""
    out = tmp_path_factory.mktemp("audited") / "run"
    list(train(config(), out))
    return out
