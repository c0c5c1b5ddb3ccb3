"""Every script of research/ runs: with --smoke, on tiny sizes, and nothing is written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NEED_A_DOWNLOAD = {  # images, a pretrained network, other people's predictions and labels
    "transfer/features.py",
    "language_model/benchmark.py",
    "label_errors/coverage.py",
    "label_errors/scorecard.py",
    "label_errors/trainings.py",
}
SCRIPTS = sorted(
    p
    for p in (ROOT / "research").rglob("*.py")
    if "__main__" in p.read_text() and p.relative_to(ROOT / "research").as_posix() not in NEED_A_DOWNLOAD
)
QUICK = {"theory/theorem3.py"}  # the others take more than a few seconds


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(p, id=name, marks=() if name in QUICK else pytest.mark.nightly)
        for p in SCRIPTS
        for name in [p.relative_to(ROOT / "research").as_posix()]
    ],
)
def test_smoke(script):
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    before = {p: p.stat().st_mtime_ns for p in script.parent.iterdir()}
    subprocess.run([sys.executable, script, "--smoke"], check=True, env=os.environ | {"PYTHONPATH": path}, cwd=ROOT)
    assert {p: p.stat().st_mtime_ns for p in script.parent.iterdir() if p.name != "__pycache__"}.items() <= (
        before.items()
    )
