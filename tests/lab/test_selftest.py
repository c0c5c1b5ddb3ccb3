"""``ausam selftest``: on the CPU, and with a failure injected."""

import subprocess
import sys

import pytest
import torch

from ausam import SAM, SelectiveBatchSampler
from ausam_lab import selftest
from ausam_lab.selftest import CHECKS, outcome
from tests.lab.helpers import run as command


@pytest.mark.parametrize("name", [name for name in CHECKS if name != "two processes"])
def test_every_check_is_ok_on_the_cpu(name):
    status, remark = outcome(CHECKS[name], "cpu")
    assert status == "ok", remark


@pytest.mark.nightly
def test_two_processes_are_ok_on_the_cpu():
    assert outcome(CHECKS["two processes"], "cpu")[0] == "ok"


def test_a_broken_method_fails_alone_and_with_its_reason(monkeypatch, capsys):
    """The table names it, the others still run, and the exit code is 1."""
    original = SAM.gradient

    def wrong_in_float32(self, step):
        factor = 1.0 if step.params[0].dtype == torch.float64 else 1.5
        return [factor * g for g in original(self, step)]

    monkeypatch.setattr(SAM, "gradient", wrong_in_float32)
    names = ("SAM: the steps of float64", "GSAM: the steps of float64", "a sampler, saved and loaded")
    monkeypatch.setattr(selftest, "CHECKS", {name: CHECKS[name] for name in names})
    assert command("selftest", "--device", "cpu") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == lines[-1] == "```"
    assert f"torch {torch.__version__}" in lines[1]
    assert [line.split()[0] for line in lines[2:5]] == ["failed", "ok", "ok"]
    assert "float64" in lines[2]
    assert lines[5] == "2 ok, 1 failed, 0 skipped"


def test_a_sampler_that_forgets_its_scores_is_found(monkeypatch):
    monkeypatch.setattr(SelectiveBatchSampler, "load_state_dict", lambda self, state: None)
    assert outcome(selftest.resumes, "cpu")[0] == "failed"


def test_it_needs_nothing_but_torch():
    """The packages of the lab may be missing."""
    code = (
        "import sys\n"
        "for name in ('rich', 'scipy', 'sklearn', 'filelock', 'altair', 'jinja2', 'optuna'): sys.modules[name] = None\n"
        "import ausam_lab.selftest as selftest\n"
        "selftest.CHECKS = {'a': lambda device: 'fine'}\n"
        "sys.argv = ['ausam', 'selftest', '--device', 'cpu']\n"
        "from ausam.__main__ import main\n"
        "sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "fine" in done.stdout


def test_a_device_that_is_not_there_is_refused(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert command("selftest", "--device", "cuda") == 2
    assert "--device cpu" in capsys.readouterr().err
