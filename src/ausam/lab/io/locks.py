"""A lock between processes that the system takes away from one that dies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def held(path: Path, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of this file inside. If another process holds it: wait for it, or be False at once.

    The file is empty and may stay.
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
