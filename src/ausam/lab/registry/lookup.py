"""Lookup by name, with a hint for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def find(kind: str, name: str, table: Mapping[str, T], more: str = "") -> T:
    """The entry of this name, ignoring case; otherwise a ValueError that lists the known names and ``more``."""
    known = {key.lower(): value for key, value in table.items()}
    if name.lower() in known:
        return known[name.lower()]
    raise unknown(kind, name, list(known), more)


def unknown(kind: str, name: str, known: list[str], more: str = "") -> ValueError:
    """The error for an unknown name."""
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return ValueError(f'There is no {kind} "{name}".{hint} Known: {", ".join(known)}{more}.')
