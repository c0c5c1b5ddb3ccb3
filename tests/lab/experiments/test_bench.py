"""``ausam bench``: measuring side by side."""

import os
import subprocess
import sys

import pytest

from ausam.lab.cli.main import main
from ausam.lab.experiments import bench
from ausam.lab.experiments.side_by_side import interleaved, median_ratio
from tests.lab.helpers import ROOT


def test_interleaved_takes_turns():
    told = []
    times = interleaved({"a": lambda: told.append("a"), "b": lambda: told.append("b")}, repeats=3, warmup=1)
    assert "".join(told) == "ba" + "ab" + "ba" + "ab"
    assert {k: len(v) for k, v in times.items()} == {"a": 3, "b": 3}
    assert median_ratio([4.0, 6.0, 100.0], [2.0, 3.0, 1.0]) == 3.0


def test_bench_parts_run_and_unknown_ones_are_named(capsys):
    assert main(["bench", "step", "--only", "overhead", "--repeats", "1"]) == 0
    assert "SAM's step against two forward-backwards" in capsys.readouterr().out
    seconds, peak = bench._plan(200_000)
    assert seconds > 1e-4  # a plan was drawn, not only asked for
    assert peak >= 0
    assert main(["bench", "step", "--only", "nothing"]) == 2
    assert "Known: memory, loading, overhead, planning" in capsys.readouterr().err


def test_a_peer_is_compared_outside_the_package():
    pytest.importorskip("pytorch_optimizer")
    script = ROOT / "benchmarks" / "sam_overhead.py"
    done = subprocess.run(
        [sys.executable, script, "1"], env=dict(os.environ), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "SAM's own cost against pytorch_optimizer.SAM's" in done.stdout


def test_what_only_unix_has_is_imported_where_it_is_used():
    code = "import sys; sys.modules['resource'] = sys.modules['fcntl'] = None; import ausam.lab.cli.main"
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
