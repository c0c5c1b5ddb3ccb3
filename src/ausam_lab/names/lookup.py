"""Lookup by name, with a hint for unknown names, and devices by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")

DEVICES = ("cpu", "cuda", "mps", "xpu")


def find(kind: str, name: str, table: Mapping[str, T], forms: str = "") -> T:
    """The entry of this name, ignoring case. Otherwise the ValueError of :func:`unknown`."""
    known = {key.lower(): value for key, value in table.items()}
    if name.lower() in known:
        return known[name.lower()]
    raise unknown(kind, name, list(table), forms)


def unknown(kind: str, name: str, known: list[str], forms: str = "") -> ValueError:
    """The error for an unknown name: the nearest known one, or else what can be written.

    ``forms`` is for the kinds that ``ausam list`` shows: what else a name may be. All names of the others are listed.
    """
    near = nearest(name, known)
    if forms and name.endswith(".py"):
        near = f"{name}:NAME"
    elif forms and re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name):
        near = ":".join(name.rsplit(".", 1))
    meant = f"Did you mean {near}? " if near else ""
    rest = f"{'' if near else f'Write {forms}. '}See ausam list." if forms else f"Known: {', '.join(known)}."
    return ValueError(f'There is no {kind} "{name}". {meant}{rest}')


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name most like this one, ignoring case. Empty if none is."""
    of = {one.lower(): one for one in known}
    return next((of[one] for one in difflib.get_close_matches(name.lower(), of, n=1)), "")


def device(name: str) -> str:
    """The device of this name ("auto": CUDA if available). A ValueError for a device that torch cannot use here."""
    import torch  # here, because a command line that only looks up names does not need it

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        wanted = torch.device(name)
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError) as error:
        why = str(error).partition("\n")[0].partition(". ")[0]
    else:
        if wanted.type in DEVICES and not (wanted.type == "cpu" and wanted.index):
            return name
        why = "nothing is trained there"
    raise ValueError(f'device is "{name}", which cannot be used here: {why}. Use cpu, or auto, cuda, cuda:0, mps, xpu.')
