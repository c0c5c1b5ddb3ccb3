"""What takes long and several files read: made once per process, and copied by whoever writes into it."""

import pytest


@pytest.fixture(scope="session")
def four_epochs(tmp_path_factory):
    """The folder of an AUSAM run of four epochs that keeps them all. Copy it before you write into it."""
    from ausam.lab.problems.catalogue import resolve  # here: the core is tested without what the lab needs
    from ausam.lab.training.loop import train

    out = tmp_path_factory.mktemp("four-epochs") / "run"
    small = {"train_size": 200, "test_size": 100, "batch_size": 32, "threads": 1}
    for _ in train(resolve(policy="ausampling", ramp=2, epochs=4, every=1, **small), out):
        pass
    return out
