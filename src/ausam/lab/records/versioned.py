"""Records in JSON files, each with its ``format`` and ``version``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from ausam.lab.records import files
from ausam.lab.records.typed_json import plain, typed

T = TypeVar("T")

REMEDY = "Remove it; the command that wrote it will write it again."


def write(path: Path, name: str, version: int, record: Any) -> None:
    """Replace the file with this record, a frozen dataclass."""
    files.write_json(path, {"format": name, "version": version, **plain(record)})


def read(path: Path, name: str, version: int, kind: type[T]) -> T | None:
    """The record in a file; None if there is no file; a ValueError for any other content."""
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
