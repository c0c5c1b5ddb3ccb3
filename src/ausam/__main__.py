"""``python -m ausam``, and the ``ausam`` command."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> int:
    """Run the command line, or say which extra it needs."""
    if sys.argv[1:2] == ["selftest"]:  # it needs nothing but torch
        from ausam.lab.selftest.run import main as selftest

        return selftest(sys.argv[2:])
    missing = [name for name in ("filelock", "rich", "scipy", "sklearn") if find_spec(name) is None]
    if missing:
        sys.stderr.write(f'The command line needs {", ".join(missing)}: pip install "ausam[lab]"\n')
        return 1
    from ausam.lab.cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
