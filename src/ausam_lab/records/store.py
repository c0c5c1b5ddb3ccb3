"""Records in JSON files: each file holds ``format``, ``version`` and the fields of its record, checked by msgspec.

A file of another format or version, or with a field that is missing, of another type or out of range, raises an error.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from ausam.common.settings import validate
from ausam_lab.records import files

REMEDY = "Remove it. The command that wrote it will write it again."

T = TypeVar("T")


class Checked:
    """A frozen dataclass whose fields are in their ranges."""

    def __post_init__(self) -> None:
        validate(self)


class Record(Checked):
    """A frozen dataclass with a file of its own."""

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int] = 1


R = TypeVar("R", bound=Record)


def typed(kind: type[T], value: Any) -> T:
    """The value as this type, such as a dataclass from a dict. A ValueError says what does not fit, and where."""
    if is_dataclass(kind) and isinstance(value, dict) and (strange := value.keys() - {f.name for f in fields(kind)}):
        raise ValueError(f"{min(strange)} is not known")  # msgspec would leave it out
    try:
        return msgspec.convert(value, kind)
    except (msgspec.MsgspecError, OverflowError, RecursionError) as error:
        raise ValueError(str(error).replace(" - at `$.", " at `")[:300]) from None


def as_line(record: Any) -> str:
    """A dataclass as JSON in one line. Unlike msgspec's, it holds NaN."""
    return json.dumps(msgspec.to_builtins(record))


def write(path: Path, record: Record) -> None:
    """Replace the file with this record."""
    content = {"format": record.FORMAT, "version": record.VERSION, **msgspec.to_builtins(record)}
    files.write_json(path, content)


def read(path: Path, kind: type[R]) -> R | None:
    """The record in a file. None if there is no file. A ValueError for any other content."""
    content = files.read_json(path)
    if content is None:
        if path.is_file():
            raise ValueError(f"{path} is not a JSON object. {REMEDY}")
        return None
    its_format, its_version = content.pop("format", None), content.pop("version", None)
    if (its_format, its_version) != (kind.FORMAT, kind.VERSION):
        was = f"{its_format or 'something else'!s:.40}, version {its_version!r:.20}"
        raise ValueError(f"{path} contains {was}, but should be a {kind.FORMAT} of version {kind.VERSION}. {REMEDY}")
    try:
        return typed(kind, content)
    except ValueError as error:
        raise ValueError(f"{path} is not in ausam's format: {str(error).rstrip('.')}. {REMEDY}") from None


def read_finished(path: Path, kind: type[R]) -> R:
    """The record in a file that must exist."""
    record = read(path, kind)
    if record is None:
        raise ValueError(f"There is no file {path}.")
    return record


def format_of(path: Path) -> str:
    """The format that a file declares. Empty if it is not a record."""
    declared = (files.read_json(path) or {}).get("format")
    return declared if isinstance(declared, str) else ""


def now() -> str:
    """The time, as records have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
