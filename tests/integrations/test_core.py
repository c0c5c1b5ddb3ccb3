"""The core knows no adapter, not even by a string that importlib could take."""

from pathlib import Path

import pytest

import ausam

ROOT = Path(ausam.__file__).parent
CORE = ("optimizer", "sampler", "methods", "policies", "common")


@pytest.mark.parametrize("path", [p for folder in CORE for p in (ROOT / folder).rglob("*.py")], ids=lambda p: p.stem)
def test_the_core_names_no_adapter(path):
    assert "ausam.integrations" not in path.read_text()
