"""A lock between processes, which the system releases when its holder dies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def file_lock(path: Path, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of this file inside the context. If another process holds it, wait, or yield False at once.

    The file is empty and may be left behind.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=-1 if wait else 0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
