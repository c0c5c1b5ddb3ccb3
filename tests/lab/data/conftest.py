"""What the tests of data sets share."""

import sys

import pytest

from ausam_lab.data import catalogue as lab_data
from tests.lab.data.archives import Published


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No data set, module or path is left over from another test."""
    lab_data._read.cache_clear()
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and name.startswith("mine"):
            del sys.modules[name]


@pytest.fixture
def published(tmp_path_factory):
    return Published(tmp_path_factory.mktemp("published"))
