"""Records in JSON files: each file holds ``format``, ``version`` and the fields of its record.

A file of another format or version, or with a field that is missing, unknown or out of range, is refused.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ausam.common.settings import validate
from ausam_lab.records import files
from ausam_lab.records.typed_json import plain, typed

REMEDY = "Remove it; the command that wrote it will write it again."


class Checked:
    """A frozen dataclass whose fields are in their ranges."""

    def __post_init__(self) -> None:
        validate(self)


class Record(Checked):
    """A frozen dataclass with a file of its own."""

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int] = 1


T = TypeVar("T")
R = TypeVar("R", bound=Record)


def write(path: Path, record: Record) -> None:
    """Replace the file with this record."""
    write_as(path, record.FORMAT, record.VERSION, record)


def read(path: Path, kind: type[R]) -> R | None:
    """The record in a file; None if there is no file; a ValueError for any other content."""
    return read_as(path, kind.FORMAT, kind.VERSION, kind)


def read_finished(path: Path, kind: type[R]) -> R:
    """The record in a file that must exist."""
    record = read(path, kind)
    if record is None:
        raise ValueError(f"There is no file {path}.")
    return record


def format_of(path: Path) -> str:
    """The format that a file declares; empty if it is not a record."""
    declared = (files.read_json(path) or {}).get("format")
    return declared if isinstance(declared, str) else ""


def now() -> str:
    """The time, as records have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write_as(path: Path, name: str, version: int, value: Any) -> None:
    """Replace the file with any dataclass, under this format and version."""
    files.write_json(path, {"format": name, "version": version, **plain(value)})


def read_as(path: Path, name: str, version: int, kind: type[T]) -> T | None:
    """What :func:`write_as` wrote; None if there is no file; a ValueError for any other content."""
    content = files.read_json(path)
    if content is None:
        if path.is_file():
            raise ValueError(f"{path} is not a JSON object. {REMEDY}")
        return None
    its_format, its_version = content.pop("format", None), content.pop("version", None)
    if (its_format, its_version) != (name, version):
        was = f"{its_format or 'something else'!s:.40}, version {its_version!r:.20}"
        raise ValueError(f"{path} contains {was}, but should be a {name} of version {version}. {REMEDY}")
    try:
        return typed(kind, content)
    except ValueError as error:
        raise ValueError(f"{path} is not in ausam's format: {str(error).rstrip('.')}. {REMEDY}") from None
