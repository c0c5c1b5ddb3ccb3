"""What reaches the terminal: text without the control characters that a file from elsewhere may hold."""

from __future__ import annotations

import sys

from ausam_lab.report.text import clean


def write(text: str) -> None:
    """Write to standard output."""
    sys.stdout.write(harmless(text))


def write_error(text: str) -> None:
    """Write to standard error."""
    sys.stderr.write(harmless(text))


def harmless(text: str) -> str:
    """The text with a space in place of every control character, which a terminal would obey; lines and tabs stay."""
    return "\n".join("\t".join(map(clean, line.split("\t"))) for line in text.split("\n"))
