"""Atomic writing: a reader finds the old content or the new, never a part, even if the writer is killed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

# Errors that another --out fixes. For all others, fix the disk and run the same command again.
NOT_HERE = (
    {errno.EACCES, errno.EPERM, errno.EROFS}
    | {errno.ENOTDIR, errno.EEXIST, errno.EISDIR}
    | {errno.ENAMETOOLONG, errno.ELOOP}
)
REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Free some space there."),
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f), or choose another disk.",
}


class WriteError(RuntimeError):
    """A file could not be written; its old content is intact."""


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Re-raise an OSError with the name of the file and the remedy."""
    try:
        yield
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}."
        if error.errno in NOT_HERE:
            raise ValueError(f"{what} Choose another --out, or make it writable.") from error
        raise WriteError(f"{what} {REMEDIES.get(error.errno or 0, 'Check the disk.')}") from error


def write(path: Path, content: bytes | str) -> None:
    """Replace the file atomically: write a temporary file next to it, flush it to disk, and rename it."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                _put(file, data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        if os.name == "posix":
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _put(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def sweep(folder: Path) -> None:
    """Remove the temporary files of killed processes. Call it only while no other process writes in this folder."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Replace the file with this content as JSON."""
    write(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if the file is missing or contains anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    # ValueError: not JSON, not text, or a number of thousands of digits; RecursionError: endless nesting
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
