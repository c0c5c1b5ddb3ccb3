"""A lock between processes that the system takes away from one that dies."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl


@contextlib.contextmanager
def held(path: Path, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of this file inside. If another process holds it: wait for it, or be False at once.

    The file stays: who removed it could take it from under a process that has just opened it. Windows has no such
    locks; there only one process may work on a folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
        yield True
