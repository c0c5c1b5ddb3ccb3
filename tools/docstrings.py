"""A griffe extension: docstrings as Markdown, for the API reference.

Two habits of our docstrings are not Markdown. An example that starts with ``>>>`` would become three nested quotations,
so it gets a fence. A Sphinx role such as ``:class:`Name``` would show its colons, so only the name stays.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

ROLE = re.compile(r":\w+:`~?([^`]+)`")
EXAMPLE = re.compile(r"^([ ]*)>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)  # from a prompt to the next empty line


def markdown(text: str) -> str:
    """The docstring with fences around its examples and without roles."""

    def fence(match: re.Match[str]) -> str:
        block = f"```pycon\n{textwrap.dedent(match[0])}\n```"
        return textwrap.indent(block, match[1])

    return ROLE.sub(r"`\1`", EXAMPLE.sub(fence, text))


class Docstrings(griffe.Extension):
    """Rewrite each docstring when its object has been read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replace the text that the page shows; the source on the page is unchanged."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
