"""Ctrl-C and SIGTERM while Python still imports end with one line too."""

import signal
import subprocess
import sys

import pytest

CODE = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Struck(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == MODULE:
            os.kill(os.getpid(), NUMBER)

sys.meta_path.insert(0, Struck())
sys.argv = ["ausam", "list"]
from ausam.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["ausam.lab.cli.main", "ausam.lab.config", "ausam.lab.training.loop"])
@pytest.mark.parametrize(("number", "code", "what"), [(2, 130, "interrupted"), (15, 143, "terminated")])
def test_a_signal_during_the_imports_is_one_line(module, number, code, what):
    text = CODE.replace("MODULE", repr(module)).replace("NUMBER", str(number))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.returncode == code
    assert done.stderr.strip() == f"ausam: {what} before anything was done."
    assert signal.Signals(number).name in ("SIGINT", "SIGTERM")
