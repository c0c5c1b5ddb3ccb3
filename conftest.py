"""Which examples of docstrings are left out (those of adapters whose framework is not installed), and a quick gc.

Property tests draw the same examples each time, without a deadline: a test must not fail by chance.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import hypothesis  # before gc.freeze: it looks for referrers, and those are frozen then
import pytest

for profile, examples in (("tests", 25), ("nightly", 100)):
    hypothesis.settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )


def pytest_configure(config: pytest.Config) -> None:
    """Long property runs are part of the nightly lane: ``make test-all`` is ``pytest -m ""``."""
    hypothesis.settings.load_profile("tests" if config.option.markexpr else "nightly")


ADAPTERS = Path(__file__).parent / "src" / "ausam" / "integrations"
NEEDS = {
    "_sequences.py": "transformers",
    "accelerate.py": "accelerate",
    "lightning.py": "lightning",
    "pytorch_lightning.py": "pytorch_lightning",
    "transformers.py": "transformers",
}
MISSING = {ADAPTERS / name: package for name, package in NEEDS.items() if find_spec(package) is None}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Pass over a module that could only fail to import; a test of it skips by itself, with the same reason."""
    return True if collection_path in MISSING else None


def pytest_report_header() -> list[str]:
    """Say what is left out, and why."""
    return [f"not collected: {path.name}, which needs {package}" for path, package in MISSING.items()]


@pytest.fixture(autouse=True)
def _gradient_mode() -> Iterator[None]:
    """A test that leaves gradients disabled fails itself, and not the tests after it."""
    yield
    import torch  # here: some tests set what torch reads when it is imported

    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        pytest.fail("This test, or the code that it calls, leaves torch's gradients disabled.")


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy, or colours that the shell asks for, must not change what a test sees."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported: frameworks ask it to look through everything after each run."""
    gc.collect()
    gc.freeze()
