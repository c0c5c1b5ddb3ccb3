"""What tests of the sampler share."""

import pytest


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few mini-batches, so that a small dataset has many."""
    monkeypatch.setattr("ausam.sampler.plan.BLOCK", 20)
