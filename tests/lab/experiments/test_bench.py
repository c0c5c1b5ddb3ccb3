"""``ausam bench``: measuring side by side. What is measured is not tested; that it is measured, and of what, is."""

import os
import subprocess
import sys

import pytest
import torch

from ausam.lab.cli.main import main
from ausam.lab.experiments.bench import overhead, peak, planning
from ausam.lab.experiments.side_by_side import interleaved, median_ratio


def test_interleaved_takes_turns():
    told = []
    times = interleaved({"a": lambda: told.append("a"), "b": lambda: told.append("b")}, repeats=3, warmup=1)
    assert "".join(told) == "ba" + "ab" + "ba" + "ab"
    assert {k: len(v) for k, v in times.items()} == {"a": 3, "b": 3}
    assert median_ratio([4.0, 6.0, 100.0], [2.0, 3.0, 1.0]) == 3.0


def test_bench_parts_run_and_unknown_ones_are_named(capsys):
    assert main(["bench", "step", "--only", "python", "--repeats", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("against by hand" in line for line in lines) == 2  # two sizes
    assert main(["bench", "step", "--only", "nothing"]) == 2
    assert "Known: memory, loading, overhead, python, peak, planning" in capsys.readouterr().err


def test_all_ways_to_write_sam_take_the_same_step():
    """Else their costs could not be compared."""
    ways = [overhead.ours, overhead.by_hand]
    if pytest.importorskip("pytorch_optimizer"):
        ways.append(overhead.peer)
    found = []
    for way in ways:
        torch.manual_seed(0)
        model, x, y = overhead._tiny(8)
        step = way(model, x, y)
        step()
        step()
        found.append([p.detach().clone() for p in model.parameters()])
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=1e-5, atol=1e-6)


def test_planning_is_measured_over_a_whole_epoch():
    found = planning.measure(100_000)
    assert found.first_batch_seconds < found.nanoseconds_per_sample * 1e-9 * found.samples
    assert 0 < found.state_bytes < 12 * 100_000  # less than the plan of the epoch


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="peaks are reset through /proc")
def test_sam_holds_one_copy_of_the_parameters_more_than_sgd():
    copies, params = peak.in_own_process(800)
    assert params == 4 * 800 * 800
    assert 0.9 < copies < 1.1


def test_what_only_unix_has_is_imported_where_it_is_used():
    code = "import sys; sys.modules['resource'] = sys.modules['fcntl'] = None; import ausam.lab.cli.main"
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
