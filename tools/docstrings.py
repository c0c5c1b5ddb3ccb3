"""A griffe extension: docstrings as Markdown, for the API reference.

Two habits of our docstrings are not Markdown. An example that starts with ``>>>`` would become three nested quotations,
so it gets a fence. A Sphinx role such as ``:class:`Name``` would show its colons, so only the name stays. The types of
settings, such as ``Annotated[float, ...]``, carry rules for a program: a reader sees ``float``.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

ROLE = re.compile(r":\w+:`~?([^`]+)`")
EXAMPLE = re.compile(r"^([ ]*)>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)  # from a prompt to the next empty line


SETTING = re.compile(
    r"Annotated\[(\w+), .*?\](?= \||$)|\b(Finite|NonNegative|Positive|Part|Probability|Decay|Epochs)\b"
    r"|\b(Count|PositiveCount)\b|\b(Flag)\b|\b(Signal)\b"
)


def plain(annotation: str) -> str:
    """The type of a setting without its rule."""
    kinds = ("", "float", "int", "bool", "str | Callable")
    return SETTING.sub(lambda match: match[1] or kinds[(match.lastindex or 1) - 1], annotation)


def markdown(text: str) -> str:
    """The docstring with fences around its examples and without roles."""

    def fence(match: re.Match[str]) -> str:
        block = f"```pycon\n{textwrap.dedent(match[0])}\n```"
        return textwrap.indent(block, match[1])

    return ROLE.sub(r"`\1`", EXAMPLE.sub(fence, text))


class Docstrings(griffe.Extension):
    """Rewrite each docstring when its object has been read."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Show the type of a setting as a reader knows it."""
        if attr.annotation is not None and plain(str(attr.annotation)) != str(attr.annotation):
            attr.annotation = plain(str(attr.annotation))

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replace the text that the page shows; the source on the page is unchanged."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
