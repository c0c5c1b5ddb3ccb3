"""Records in JSON files with their ``format``, ``version`` and fields, and a ``digest`` of everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from ausam.lab.records import digests, files
from ausam.lab.records.typed_json import plain, typed

T = TypeVar("T")

REMEDY = "the command that wrote it will write it again."


def write(path: Path, name: str, version: int, record: Any) -> None:
    """Replace the file with this record, a frozen dataclass."""
    content = {"format": name, "version": version, **plain(record)}
    files.write_json(path, {**content, "digest": digests.of_json(content)})


def read(path: Path, name: str, version: int, kind: type[T]) -> T | None:
    """The record in a file; None if the file is missing or not JSON; a ValueError for any other content."""
    found = files.read_json(path)
    if found is None:
        return None
    about = {k: found.pop(k, None) for k in ("format", "version", "digest")}
    if about["format"] != name or about["version"] != version:
        was = f"{about['format'] or 'something else'!s:.40}, version {about['version']!r:.20}"
        raise ValueError(f"{path} contains {was}, but should be a {name} of version {version}. Remove it; {REMEDY}")
    try:
        record = typed(kind, found)
    except ValueError as error:
        raise ValueError(f"{path} is not in ausam's format: {str(error).rstrip('.')}. Remove it; {REMEDY}") from None
    if digests.of_json({"format": name, "version": version, **found}) != about["digest"]:
        raise ValueError(f"{path} was changed: its content does not match its digest. Remove it; {REMEDY}")
    return record
