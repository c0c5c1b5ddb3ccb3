"""Lookup by name, with a hint for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


def find(kind: str, name: str, table: Mapping[str, T], forms: str = "") -> T:
    """The entry of this name, ignoring case; otherwise the ValueError of :func:`unknown`."""
    known = {key.lower(): value for key, value in table.items()}
    if name.lower() in known:
        return known[name.lower()]
    raise unknown(kind, name, list(known), forms)


def unknown(kind: str, name: str, known: list[str], forms: str = "") -> ValueError:
    """The error for an unknown name: the nearest known one, or else what can be written.

    ``forms`` is for the kinds that ``ausam list`` shows: what else a name may be. All names of the others are listed.
    """
    see = "See ausam list." if forms else ""
    if near := nearest(name.lower(), known):
        hint = f"Did you mean {near}? {see}"
    else:
        hint = f"Write {forms}. {see}" if forms else f"Known: {', '.join(known)}."
    return ValueError(f'There is no {kind} "{name}". {hint}'.rstrip())


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name most like this one; empty if none is."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), "")
