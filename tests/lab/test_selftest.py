"""``ausam selftest``: on the CPU, and with a failure injected."""

import subprocess
import sys
import unittest

import pytest
import torch

from ausam import SAM, SelectiveBatchSampler
from ausam_lab import selftest
from tests.lab.helpers import run as command


def outcome(*names):
    result = unittest.TestResult()
    unittest.TestSuite(map(selftest.Checks, names)).run(result)
    return result


def test_every_check_is_ok_on_the_cpu(capsys):
    assert command("selftest", "--device", "cpu") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == lines[-1] == "```"
    assert f"torch {torch.__version__}" in lines[1]


def test_a_check_that_fails_is_the_exit_code(monkeypatch, capsys):
    for name in ("methods", "mixed_precision"):
        monkeypatch.delattr(selftest.Checks, f"test_{name}")
    monkeypatch.setattr(selftest.Checks, "test_resuming", lambda self: self.fail("it burst"))
    assert command("selftest", "--device", "cpu") == 1
    assert "it burst" in capsys.readouterr().out


def test_a_broken_method_fails_alone(monkeypatch):
    original = SAM.gradient

    def wrong_in_float32(self, step):
        factor = 1.0 if step.params[0].dtype == torch.float64 else 1.2
        return [factor * g for g in original(self, step)]

    monkeypatch.setattr(SAM, "gradient", wrong_in_float32)
    broken = {str(test) for test, _ in outcome("test_methods").failures}
    assert any("[SAM]" in name for name in broken)
    assert not any("[GSAM]" in name for name in broken)


def test_a_sampler_that_forgets_its_scores_is_found(monkeypatch):
    monkeypatch.setattr(SelectiveBatchSampler, "load_state_dict", lambda self, state: None)
    assert not outcome("test_resuming").wasSuccessful()


def test_it_needs_nothing_but_torch():
    """The packages of the lab may be missing."""
    code = (
        "import sys\n"
        "for name in ('rich', 'scipy', 'sklearn', 'filelock', 'altair', 'jinja2', 'optuna'): sys.modules[name] = None\n"
        "from ausam_lab.selftest import Checks\n"
        "for name in ('methods', 'mixed_precision'): delattr(Checks, f'test_{name}')\n"
        "sys.argv = ['ausam', 'selftest', '--device', 'cpu']\n"
        "from ausam.__main__ import main\n"
        "sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_device_that_is_not_there_is_refused(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert command("selftest", "--device", "cuda") == 2
    assert "Use cpu" in capsys.readouterr().err
