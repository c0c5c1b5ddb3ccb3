"""A lock between processes, which the system releases when its holder dies."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("ausam")

PATIENCE = 10.0  # seconds of waiting before a word about it


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
        if not wait:
            yield False
            return
        log.warning("Waiting for another process that holds %s. If there is none, a crash left it: remove it.", path)
        lock.acquire()
    try:
        yield True
    finally:
        lock.release()
