"""What a command does not use, it does not import."""

import os
import subprocess
import sys

import pytest

HEAVY = (
    "scipy",
    "sklearn",
    "PIL",
    "altair",
    "pandas",
    "tensorboard",
    "ray",
    "filelock",
    "jinja2",
    "matplotlib",
    "optuna",
    "vl_convert",
)
CODE = """
import sys
{code}
print(sorted({{name.partition(".")[0] for name in sys.modules}}))
"""


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("from ausam_lab.cli.main import main; main([])", (*HEAVY, "torch", "numpy", "rich")),
        ("import torch; before = set(sys.modules); import ausam; [sys.modules.pop(name) for name in before]", HEAVY),
    ],
    ids=["ausam", "import ausam"],
)
def test_heavy_libraries_wait_until_they_are_used(code, heavy):
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(code=code)], env={**os.environ}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert [name for name in heavy if f"'{name}'" in done.stdout] == []
