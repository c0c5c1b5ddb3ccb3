"""What may go wrong while a command runs, and what is told of it: see docs/faults.md."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from ausam.lab.data import DownloadError
from ausam.lab.data.loading import DataError
from ausam.lab.files import WriteError
from ausam.lab.ranks import LostError

FAILED, MISUSE, INTERRUPTED, TERMINATED = 1, 2, 130, 143  # and 0 when all is done


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """Inside, Ctrl-C and SIGTERM are a KeyboardInterrupt, so that files are closed and workers stopped.

    Yields a list of those that came: Ray, for one, does not keep which it was. A second one ends all at once.
    """
    came: list[int] = []

    def stop(number: int, _: FrameType | None) -> NoReturn:
        if came:
            os._exit(128 + number)
        came.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only that one is told of signals
        yield came
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield came
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def explained(error: Exception) -> tuple[str, int] | None:
    """What to tell of a failure that is known, and its exit code; None for one whose traceback somebody needs."""
    if isinstance(error, ValueError):
        return str(error), MISUSE
    if isinstance(error, PermissionError):
        return f"{error.filename} cannot be used: {error.strerror}. Choose another place, or change its rights.", MISUSE
    if isinstance(error, DownloadError | DataError | WriteError | LostError):
        return str(error), FAILED
    if isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker"):
        what = str(error).partition(". ")[0].strip()
        return (
            f"A process that loads data died: {what}. Most often the system killed it because memory ran out: use "
            "fewer --workers. With 0, a dataset that crashes shows its error.",
            FAILED,
        )
    return None
