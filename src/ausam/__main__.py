"""``python -m ausam``, and the ``ausam`` command."""

from __future__ import annotations

import os
import signal
import sys
from importlib.util import find_spec
from types import FrameType
from typing import NoReturn

SAID = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


def _stop(number: int, _: FrameType | None) -> NoReturn:
    """End with one line: while modules are imported there is nothing to keep, and an exception might be swallowed."""
    os.write(2, f"\nausam: {SAID[signal.Signals(number)]} before anything was done.\n".encode())
    os._exit(128 + number)


def main() -> int:
    """Run the command line, or say which extra it needs."""
    before = {number: signal.signal(number, _stop) for number in SAID}
    missing = [name for name in ("filelock", "rich", "scipy", "sklearn") if find_spec(name) is None]
    if missing:
        sys.stderr.write(f'The command line needs {", ".join(missing)}: pip install "ausam[lab]"\n')
        return 1
    from ausam.lab.cli.main import main as run

    for number, handler in before.items():
        signal.signal(number, handler)
    return run()


if __name__ == "__main__":
    sys.exit(main())
