"""The benchmarks: what they measure is not tested; that they measure, and the same work in all candidates, is."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """Import a script, as when it is run."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def said(name, *flags):
    done = subprocess.run(
        [sys.executable, FOLDER / name, *map(str, flags)], capture_output=True, text=True, timeout=300, check=True
    )
    return done.stdout


def test_all_ways_to_write_sam_take_the_same_step(script):
    """Else their costs could not be compared."""
    overhead = script("overhead")
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


@pytest.mark.nightly
def test_the_scripts_run():
    assert "A step of SAM, resnet-tiny on digits, batch 32: " in said("split.py", "--repeats", 1, "--batch-size", 32)
    assert "SAM to AUSAM-0.5, 1 ms to load" in said("speed.py", "--repeats", 1, "--only", "loading")
    assert "AUSampling: 20,000 samples planned in" in said("sampler.py", "--samples", 20_000, "--only", "planning")
    form = r"exchange of 20,000 scores: [\d.]+ s, \d+ ns per sample\n"
    assert re.fullmatch(form, said("sampler.py", "--samples", 20_000, "--only", "exchange"))


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="peaks are reset through /proc")
@pytest.mark.nightly
def test_sam_holds_one_copy_of_the_parameters_more_than_sgd():
    for copies in re.findall(r"parameters: ([\d.]+) copies", said("sampler.py", "--only", "peak")):
        assert 0.9 < float(copies) < 1.1
