"""A framework's settings, each honoured, refused or irrelevant: one table for the check and the documentation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Treatment = Literal["honoured", "refused", "not concerned"]


@dataclass(frozen=True)
class Setting:
    """How an adapter treats a setting.

    Arguments:
        treatment: "honoured" (some values may be refused); "refused": every value except the default is; "not
            concerned": the adapter does not depend on it, and the framework treats it as usual.
        note: the remark in the documentation.
        refuse: returns the error message for the adapter's circumstances, or None if there is no problem.
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


def warn_of_unknown(table: Mapping[str, Setting], given: Mapping[str, tuple[Any, Any]], framework: str) -> None:
    """Warn of changed settings that the table lacks, because a newer version of the framework brought them.

    Arguments:
        table: the settings that the adapter knows.
        given: name: (value, default) of each setting that the user can change.
        framework: the name of the framework, for the message.
    """
    unknown = [name for name, (value, default) in given.items() if name not in table and value != default]
    if unknown:
        warnings.warn(
            f"ausam does not know {', '.join(unknown)}: this {framework} is newer than the one it was tested with. "
            "Whether the setting agrees with the method and the policy was not checked; upgrade ausam, or leave it "
            "at its default.",
            stacklevel=3,
        )


def markdown(table: Mapping[str, Setting], what: str) -> str:
    """The table for the documentation. Settings that are not concerned and have no note share the last row."""
    lines = [f"| {what} | treatment | how |", "|---|---|---|"]
    quiet = []
    for name, setting in table.items():
        if setting.treatment == "not concerned" and not setting.note:
            quiet.append(f"`{name}`")
            continue
        partly = setting.treatment == "honoured" and setting.refuse is not None
        lines.append(f"| `{name}` | {setting.treatment}{' or refused' if partly else ''} | {setting.note} |")
    if quiet:
        lines.append(f"| {', '.join(quiet)} | not concerned | left to the framework |")
    return "\n".join(lines) + "\n"
