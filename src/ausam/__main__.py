"""``python -m ausam``: the ``ausam`` command, which the lab has."""

import sys

from ausam_lab.cli.main import program as main

if __name__ == "__main__":
    sys.exit(main())
