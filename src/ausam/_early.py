"""Ctrl-C and SIGTERM while the ``ausam`` command is still being imported: one line and an exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

SAID = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


def _stop(number: int, _: FrameType | None) -> NoReturn:
    """Exit at once: during import there is nothing to save, and an exception might be swallowed."""
    os.write(2, f"\nausam: {SAID[signal.Signals(number)]} before anything was done.\n".encode())
    os._exit(128 + number)


def watch() -> Callable[[], None]:
    """Let both signals end the process with that line; returns a function that restores the previous handlers."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        return lambda: None
    before: dict[signal.Signals, Any] = {number: signal.signal(number, _stop) for number in SAID}

    def put_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return put_back


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Inside, both signals end the process with that line."""
    put_back = watch()
    try:
        yield
    finally:
        put_back()


def is_command(argv: list[str]) -> bool:
    """Whether a process started like this is ``python -m ausam``, or the ``ausam`` script of this Python."""
    if "-m" in argv[:-1]:
        return argv[argv.index("-m") + 1] == "ausam"
    scripts = os.path.realpath(os.path.dirname(sys.executable))
    return len(argv) > 1 and os.path.realpath(argv[1]) == os.path.join(scripts, "ausam")


# torch takes seconds to import, and importing any submodule imports the package first. So watching starts here, when
# this module is imported, and ausam/__init__.py ends it. A process that only uses the library is not affected.
end: Callable[[], None] = watch() if is_command(sys.orig_argv) else lambda: None
