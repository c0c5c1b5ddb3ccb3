"""``python -m ausam``, and the ``ausam`` command."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

UNREAD = 141  # what a shell reports of a program that a broken pipe ends


def main() -> int:
    """Run the command line; if the reader of its output leaves (``ausam ... | head``), end without a word."""
    try:
        code = _run()
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_left():
            raise
        return UNREAD
    return code


def _run() -> int:
    """Run the command, or say which extra it needs."""
    if sys.argv[1:2] == ["selftest"]:  # it needs nothing but torch
        from ausam_lab.selftest import main as selftest

        return selftest(sys.argv[2:])
    missing = [name for name in ("filelock", "rich", "scipy", "sklearn") if find_spec(name) is None]
    if missing:
        sys.stderr.write(f'The command line needs {", ".join(missing)}: pip install "ausam[lab]"\n')
        return 1
    from ausam_lab.cli.main import main as run

    return run()


def _reader_left() -> bool:
    """Whether it is standard output that is broken, and not another pipe; if so, its rest goes nowhere."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
