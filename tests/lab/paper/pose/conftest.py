"""What the tests of poses share."""

import pytest

from ausam_lab.paper.pose import stick_figures


@pytest.fixture
def few_figures(monkeypatch):
    monkeypatch.setattr(stick_figures, "TRAIN", 40)
    monkeypatch.setattr(stick_figures, "TEST", 20)
