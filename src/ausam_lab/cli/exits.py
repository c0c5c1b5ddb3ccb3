"""How a command ends: its exit code, and what signals do to it (docs/troubleshooting.md)."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

FAILED, MISUSE, INTERRUPTED, TERMINATED = 1, 2, 130, 143  # and 0 on success


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """Inside, Ctrl-C and SIGTERM raise KeyboardInterrupt, so files are closed and workers stopped.

    Yields the list of signals received, because Ray, for one, loses which it was. A second signal exits at once.
    """
    came: list[int] = []

    def stop(number: int, _: FrameType | None) -> NoReturn:
        if came:
            os._exit(128 + number)
        came.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield came
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield came
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
