"""``ausam bench``: measuring side by side. What is measured is not tested; that it is measured, and of what, is."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ausam_lab.cli.main import main
from ausam_lab.config import Config
from ausam_lab.experiments import bench
from ausam_lab.experiments.bench import exchange, peak, planning, split
from ausam_lab.experiments.side_by_side import interleaved, median_ratio


def test_interleaved_takes_turns():
    calls = []
    times = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3, warmup=1)
    assert "".join(calls) == "ba" + "ab" + "ba" + "ab"
    assert {k: len(v) for k, v in times.items()} == {"a": 3, "b": 3}
    assert median_ratio([4.0, 6.0, 100.0], [2.0, 3.0, 1.0]) == 3.0


def test_every_turn_is_announced():
    calls = []
    interleaved({"a": lambda: None}, repeats=2, warmup=1, title="it", on_turn=lambda *turn: calls.append(turn))
    assert calls == [("it", 0, 3), ("it", 1, 3), ("it", 2, 3)]


def test_bench_prints_each_figure_and_unknown_parts_are_named(monkeypatch, capsys):
    def part(repeats, on_turn):
        on_turn("a thing", 0, 1)
        yield f"a thing {repeats}x"

    monkeypatch.setitem(bench.PARTS, "planning", part)
    assert main(["bench", "step", "--only", "planning", "--repeats", "7"]) == 0
    assert capsys.readouterr().out == "a thing 7x\n"
    assert main(["bench", "step", "--only", "nothing"]) == 2
    assert "Known: memory, loading, peak, planning" in capsys.readouterr().err


def test_a_step_is_split_by_the_papers_rule():
    times = split.Split(loading=1.0, passes=8.0, half=5.0, step=9.0)
    assert (times.whole, times.rest, times.chosen(0.5)) == (10.0, 2.0, 6.0)
    text = split.text(Config(batch_size=64), times)
    assert "T_f, forward and backward, twice:  8000.00 ms, 80%" in text
    assert (
        "T_b, the rest:                     2000.00 ms, 20% (loading 1000.00, perturbation and base step 1000.00)"
        in text
    )
    assert "alpha 0.5: 6000.00 ms, 1.67 times as fast as SAM" in text
    assert "half the batch take 62% of" in text.replace("63%", "62%")


def test_the_split_is_of_ones_own_network(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\n"
        "def net(classes, channels):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    flags = ["--model", "own_net:net", "--data", "digits", "--batch-size", "32", "--repeats", "1", "--device", "cpu"]
    assert main(["bench", "split", *flags, "--threads", "1"]) == 0
    assert capsys.readouterr().out.startswith("A step of SAM, own_net:net on digits, batch 32: ")
    with pytest.raises(SystemExit):  # a step takes as long with any rho
        main(["bench", "split", "--rho", "0.1"])


def test_an_interrupted_benchmark_does_not_claim_to_have_kept_anything(monkeypatch, capsys):
    def part(repeats, on_turn):
        yield "one figure"
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "PARTS", {"peak": part})
    assert main(["bench", "step"]) == 130
    out, err = capsys.readouterr()
    assert out == "one figure\n"
    assert err.endswith("ausam: interrupted.\n")


@pytest.fixture(scope="module")
def overhead():
    """The benchmark of other implementations, which is not in the package."""
    path = Path(__file__).parents[3] / "benchmarks" / "overhead.py"
    spec = importlib.util.spec_from_file_location("overhead", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_ways_to_write_sam_take_the_same_step(overhead):
    """Else their costs could not be compared."""
    ways = [overhead.ours, overhead.by_hand]
    if importlib.util.find_spec("pytorch_optimizer"):
        ways.append(overhead.peer)
    weights = []
    for way in ways:
        torch.manual_seed(0)
        model, x, y = overhead._tiny(8)
        step = way(model, x, y)
        step()
        step()
        weights.append([p.detach().clone() for p in model.parameters()])
    for other in weights[1:]:
        torch.testing.assert_close(weights[0], other, rtol=1e-5, atol=1e-6)


def test_the_parts_of_a_step_are_timed(overhead):
    """Their names follow the optimizer's."""
    line = overhead._breakdown(lambda: overhead._tiny(8), 3)
    assert all(part in line for part in overhead.PARTS)


def test_planning_is_measured_over_a_whole_epoch():
    measured = planning.measure(100_000)
    assert measured.first_batch_seconds < measured.nanoseconds_per_sample * 1e-9 * measured.samples
    assert 0 < measured.state_bytes < 12 * 100_000  # less than the plan of the epoch


def test_the_exchange_is_measured_between_two_processes():
    (line,) = exchange.exchange(2, lambda *_: None, sizes=(20_000,))
    form = r"exchange of 20,000 scores between 2 processes: [\d.]+ s, (\d+) ns and \d+ bytes per sample .*"
    assert int(re.fullmatch(form, line)[1]) > 0


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="peaks are reset through /proc")
@pytest.mark.nightly
def test_sam_holds_one_copy_of_the_parameters_more_than_sgd():
    copies, params = peak.in_own_process(800)
    assert params == 4 * 800 * 800
    assert 0.9 < copies < 1.1


@pytest.mark.nightly
def test_what_only_unix_has_is_imported_where_it_is_used():
    code = "import sys; sys.modules['resource'] = sys.modules['fcntl'] = None; import ausam_lab.cli.main"
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
