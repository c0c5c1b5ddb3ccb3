"""The small problems of tests/diagnostics."""

from tests.diagnostics.conftest import linear, net

__all__ = ["linear", "net"]
