"""``ausam selftest``: on the CPU, and with a failure injected."""

import io
import re
import subprocess
import sys

import pytest
import torch

from ausam import METHODS, SAM
from ausam_lab.selftest import checks, run
from tests.lab.helpers import run as command

ALL = checks.all_checks()
QUICK = {name: check for name, check in ALL.items() if name not in ("torch.compile", "two processes")}


@pytest.fixture(autouse=True)
def no_timing(monkeypatch):
    monkeypatch.setattr(run, "step_times", lambda device: f"none on {device}")


def results(chosen, device="cpu"):
    return {result.name: result for result in run.run(device, chosen)}


def test_everything_passes_on_the_cpu():
    passed = results(QUICK)
    assert {result.status for result in passed.values()} == {"pass"}, passed
    assert sum(name.endswith("float64") for name in passed) == len(METHODS)
    assert {"an error in any pass", "mixed precision", "resume", "sampler with workers"} < set(passed)


@pytest.mark.nightly
def test_two_processes_pass_on_the_cpu():
    assert float(re.search(r"gloo, (\S+) from one process", checks.two_processes("cpu"))[1]) < 1e-4


def test_a_compiled_model_passes_or_torch_says_why_not(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model: torch.nn.Sequential(model))
    assert "from the model without" in checks.compiled("cpu")

    class NoCompiler(torch.nn.Sequential):
        def forward(self, x):
            raise RuntimeError("Failed to find C++ compiler.\nMore")

    def no_compiler(model):
        return NoCompiler(model)

    monkeypatch.setattr(torch, "compile", no_compiler)
    result = results({"it": checks.compiled})["it"]
    assert (result.status, "C++ compiler" in result.remark) == ("skip", True)


def test_a_broken_method_fails_alone_and_with_its_reason(monkeypatch, capsys):
    """The table names it, the others still run, and the exit code is 1."""
    original = SAM.gradient

    def broken(self, step):
        return [1.5 * g for g in original(self, step)]

    chosen = {name: ALL[name] for name in ("SAM: the steps of float64", "GSAM: the steps of float64", "resume")}

    def once_right(self, step):  # right in float64, wrong on the device
        return original(self, step) if step.params[0].dtype == torch.float64 else broken(self, step)

    monkeypatch.setattr(SAM, "gradient", once_right)
    monkeypatch.setattr(run, "all_checks", lambda: chosen)
    assert command("selftest", "--device", "cpu") == 1
    text = capsys.readouterr().out
    assert re.search(r"FAIL  SAM: the steps of float64 .* the weights are \S+ away", text)
    assert re.search(r"pass  GSAM: the steps of float64", text)
    assert re.search(r"pass  resume", text)
    assert "2 passed, 1 failed, 0 skipped" in text


def test_weights_that_are_not_restored_are_found(monkeypatch):
    plain = METHODS["Plain"]

    def careless(self, step):
        with torch.no_grad():
            step.params[0].add_(1.0)
        return step.gradient()

    monkeypatch.setattr(plain, "gradient", careless)
    result = results({"it": checks.restores_after_an_error})["it"]
    assert result.status == "FAIL"
    assert "Plain did not restore the weights" in result.remark


def test_an_error_of_any_kind_is_a_reason_and_no_end():
    def bursts(_):
        raise RuntimeError("first\n\nthe last line")

    def skips(_):
        raise checks.SkipCheckError("not here")

    ended = results({"a": bursts, "b": skips, "c": lambda device: f"on {device}"})
    assert [(r.status, r.remark) for r in ended.values()] == [
        ("FAIL", "RuntimeError: the last line"),
        ("skip", "not here"),
        ("pass", "on cpu"),
    ]


def test_versions_device_and_time_can_be_pasted():
    out = io.StringIO()
    assert run.selftest("cpu", out, {"a": lambda _: "fine"}) == 0
    lines = out.getvalue().splitlines()
    assert lines[0] == lines[-1] == "```"
    assert all(word in lines[1] for word in ("ausam ", "cpu (", f"torch {torch.__version__}", "Python 3."))
    assert lines[3] == "time  none on cpu"


def test_it_needs_nothing_but_torch():
    """The packages of the lab may be missing."""
    code = (
        "import sys\n"
        "for name in ('rich', 'scipy', 'sklearn', 'filelock', 'altair', 'jinja2'): sys.modules[name] = None\n"
        "import ausam_lab.selftest.run as run\n"
        "run.all_checks = lambda: {'a': lambda device: 'fine'}\n"
        "run.step_times = lambda device: ''\n"
        "sys.argv = ['ausam', 'selftest', '--device', 'cpu']\n"
        "from ausam.__main__ import main\n"
        "sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "pass  a  fine" in done.stdout


def test_a_device_that_is_not_there_is_refused(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert command("selftest", "--device", "cuda") == 2
    assert "torch sees no CUDA device" in capsys.readouterr().err
