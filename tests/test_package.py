"""The wheel: what is in it, and that the library needs none of the extras."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import ausam

ROOT = Path(__file__).parent.parent

# What the extras bring; importing any of it from the library itself is a mistake.
EXTRAS = ("rich", "sklearn", "PIL", "tensorboard", "lightning", "accelerate", "transformers", "pytorch_optimizer")

ALONE = f"""
import sys
for name in {EXTRAS!r}:
    sys.modules[name] = None
import ausam
assert ausam.__file__.startswith(sys.argv[1]), ausam.__file__
assert not [m for m in sys.modules if m.startswith("ausam_lab")]
ausam.check(ausam.SAM(), ausam.AUSampling())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("build", reason="the extra test has no build and hatchling")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    return wheel


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    source = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*") if p.is_file()}
    source = {name for name in source if "__pycache__" not in name}
    assert source <= names
    assert "ausam/py.typed" in names
    assert {n.split("/")[0] for n in names if "dist-info" not in n} == {"ausam", "ausam_lab"}


def test_it_imports_without_any_extra(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path)], check=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}
    )


def test_the_wheel_is_of_this_version(wheel):
    assert wheel.name.startswith(f"ausam-{ausam.__version__}-")


def test_the_version_has_one_source():
    written = [p.name for p in (ROOT / "pyproject.toml", ROOT / "CITATION.cff") if ausam.__version__ in p.read_text()]
    assert written == []
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == ausam.__version__


def test_the_lower_bounds_are_those_that_are_tested():
    """``make test-oldest`` installs oldest.txt; every dependency of the library is in it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = dict(line.split(">=") for line in project["dependencies"])
    oldest = dict(line.split("==") for line in (ROOT / "oldest.txt").read_text().splitlines() if "==" in line)
    assert bounds.keys() == oldest.keys()
    for name, bound in bounds.items():
        assert oldest[name].startswith(f"{bound}."), name
