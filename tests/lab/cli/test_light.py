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
import torch
before = set(sys.modules)
{code}
print(sorted({{m.partition(".")[0] for m in set(sys.modules) - before}}))
"""


@pytest.mark.parametrize("code", ["import ausam", "import ausam_lab.cli.main as m; m.parser().format_help()"])
def test_heavy_libraries_wait_until_they_are_used(code):
    text = CODE.format(code=code)
    done = subprocess.run(
        [sys.executable, "-c", text], env=dict(os.environ), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert [name for name in HEAVY if f"'{name}'" in done.stdout] == []
