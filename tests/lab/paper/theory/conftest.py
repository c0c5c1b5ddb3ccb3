"""The small problems of tests/diagnostics."""

from tests.diagnostics.conftest import conv, linear, net

__all__ = ["conv", "linear", "net"]
