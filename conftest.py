"""Which examples of docstrings are left out (those of adapters whose framework is not installed), and a quick gc."""

from __future__ import annotations

import gc
from importlib.util import find_spec
from pathlib import Path

import hypothesis  # noqa: F401  (before gc.freeze: it looks for referrers, and those are frozen then)

ADAPTERS = Path(__file__).parent / "src" / "ausam" / "integrations"
NEEDS = {
    "_accelerator_arguments.py": "accelerate",
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


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported: frameworks ask it to look through everything after each run."""
    gc.collect()
    gc.freeze()
