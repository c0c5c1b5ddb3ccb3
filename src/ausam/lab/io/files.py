"""Writing files so that a reader, or a process killed at any moment, finds the old content or the new, never a part."""

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
    """A file could not be written; what was there before is whole."""


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Re-raise an OSError inside with the name of the file and the remedy."""
    try:
        yield
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}."
        if error.errno in NOT_HERE:
            raise ValueError(f"{what} Choose another --out, or make that place one that can be written.") from error
        raise WriteError(f"{what} {REMEDIES.get(error.errno or 0, 'Look after that disk.')}") from error


def write(path: Path, content: bytes | str) -> None:
    """Replace the file at once: a temporary file beside it, flushed to disk, then renamed."""
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
    """Remove the temporary files of processes that were killed. Only for who alone writes in this folder."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Replace the file by this content as JSON."""
    write(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of a file that holds a JSON object; None if there is none, or it holds anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    # numbers of thousands of digits are a ValueError, as what is not JSON or no text; endless nesting a RecursionError
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file with a JSON object a line, up to the first line that is none."""
    rows = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if not isinstance(row, dict):
                break
            rows.append(row)
    return rows
