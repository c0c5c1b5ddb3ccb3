"""Ctrl-C and SIGTERM while Python still imports end with one line too."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ausam._early import is_command

# Python imports a module of this name before it looks at the command.
SITE = """
import os, sys
from importlib.abc import MetaPathFinder

class Struck(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == os.environ["STRIKE_AT"]:
            os.kill(os.getpid(), int(os.environ["STRIKE_WITH"]))

sys.meta_path.insert(0, Struck())
"""
SCRIPT = Path(sys.executable).parent / "ausam"
COMMANDS = {"module": [sys.executable, "-m", "ausam"], "script": [sys.executable, str(SCRIPT)]}


def struck(tmp_path, command, module, number):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"PYTHONPATH": path, "STRIKE_AT": module, "STRIKE_WITH": str(number)}
    return subprocess.run(
        [*command, "list"],
        capture_output=True,
        text=True,
        timeout=120,
        env=env,
        # tests that run in the background may have inherited an ignored Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


INTERRUPTED = ["torch", "torch._C", "ausam.selection", "ausam.lab.training.loop"]
TERMINATED = ["torch", "torch.optim", "ausam.lab.cli.main"]


@pytest.mark.parametrize(
    ("module", "number"), [*((name, 2) for name in INTERRUPTED), *((name, 15) for name in TERMINATED)]
)
def test_a_signal_during_the_imports_is_one_line(tmp_path, module, number):
    code, what = {2: (130, "interrupted"), 15: (143, "terminated")}[number]
    done = struck(tmp_path, COMMANDS["module"], module, number)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.strip() == f"ausam: {what} before anything was done."


@pytest.mark.skipif(not SCRIPT.exists(), reason="the package is on the path, but not installed")
def test_the_script_is_the_same_command(tmp_path):
    done = struck(tmp_path, COMMANDS["script"], "torch", 15)
    assert (done.returncode, done.stderr.strip()) == (143, "ausam: terminated before anything was done.")


def test_a_program_that_uses_the_library_keeps_its_signals(tmp_path):
    done = struck(tmp_path, [sys.executable, "-c", "import ausam"], "torch", 2)
    assert done.returncode != 130
    assert "KeyboardInterrupt" in done.stderr
    assert "ausam: " not in done.stderr


@pytest.mark.parametrize(
    ("argv", "yes"),
    [
        (["python", "-m", "ausam", "list"], True),
        (["python", "-u", "-m", "ausam"], True),
        (["python", str(SCRIPT), "list"], True),
        (["python", "-m", "pytest", "ausam"], False),
        (["python", "ausam"], False),
        (["python", "mine.py", "-m"], False),
        (["python"], False),
    ],
)
def test_which_process_is_the_command(argv, yes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_command(argv) is yes
