"""A framework's settings, each honoured, refused or of no concern: one table for the check and the documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Treatment = Literal["honoured", "refused", "not concerned"]


@dataclass(frozen=True)
class Setting:
    """What an adapter does with a setting.

    Arguments:
        treatment: "honoured", though some values of it may be refused; "refused": every value but the default is;
            "not concerned": nothing of ours depends on it, and the framework does with it what it always does.
        note: what the documentation says about it.
        refuse: the error message for the adapter's circumstances, or None if they are fine.
    """

    treatment: Treatment
    note: str = ""
    refuse: Callable[[Any], str | None] | None = None


def refuse_settings(table: Mapping[str, Setting], circumstances: Any) -> None:
    """Raise a ValueError for the first setting of the table that cannot be honoured."""
    for name, setting in table.items():
        message = None if setting.refuse is None else setting.refuse(circumstances)
        if message is not None:
            raise ValueError(f"{name}: {message}")


def markdown(table: Mapping[str, Setting], what: str) -> str:
    """The table for the documentation; what is not concerned and has no note is in one row at its end."""
    lines = [f"| {what} | treatment | how |", "|---|---|---|"]
    quiet = []
    for name, setting in table.items():
        if setting.treatment == "not concerned" and not setting.note:
            quiet.append(f"`{name}`")
            continue
        partly = setting.treatment == "honoured" and setting.refuse is not None
        lines.append(f"| `{name}` | {setting.treatment}{' or refused' if partly else ''} | {setting.note} |")
    if quiet:
        lines.append(f"| {', '.join(quiet)} | not concerned | the framework's own business |")
    return "\n".join(lines) + "\n"
