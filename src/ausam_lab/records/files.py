"""Atomic writing, so that a reader finds the old content or the new, even if the writer is killed, and locks."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATIENCE = 600.0  # seconds of waiting for a lock

# Errors that another --out fixes. For all others, free the disk and run the same command again.
NOT_HERE = (PermissionError, NotADirectoryError, FileExistsError, FileNotFoundError, IsADirectoryError)
REMEDY = "Free some space there, raise the limit on the size of files (ulimit -f), or choose another --out."


class RunError(RuntimeError):
    """A failure that other arguments would not have avoided. Its text says what happened and what to do."""


class WriteError(RunError):
    """A file could not be written. Its old content is intact."""


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Re-raise an OSError with the name of the file and the remedy."""
    try:
        yield
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}."
        if isinstance(error, NOT_HERE):
            raise ValueError(f"{what} Choose another --out, or make it writable.") from error
        raise WriteError(f"{what} {REMEDY}") from error


def write(path: Path, content: bytes | str) -> None:
    """Replace the file atomically: write a temporary file next to it, flush it to disk, and rename it.

    A device, such as /dev/null, is written in place. The temporary file is new and has a random name, so nothing that
    somebody has put there is followed.
    """
    data = content.encode() if isinstance(content, str) else content
    path = path.resolve()  # a link stays, and its target is replaced
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the temporary files of killed processes. Call it only while no other process writes in this folder."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Replace the file with this content as JSON."""
    write(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file. None if the file is missing or contains anything else."""
    if not path.is_file():  # opening a pipe would wait for its writer
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    # ValueError: not JSON, not text, or a number of thousands of digits; RecursionError: endless nesting
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


@contextlib.contextmanager
def file_lock(path: Path, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of this file inside the context. If another process holds it, wait, or yield False at once.

    The file is empty and may be left behind. On a file system without flock a crash leaves it locked.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE if wait else 0)
    except Timeout:
        if wait:
            raise WriteError(f"Another process holds {path}. If there is none, a crash left it: remove it.") from None
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
