"""The examples run as their first lines say, and do what they say."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.processes import FRAMEWORKS, forked, script

EXAMPLES = Path(__file__).parent.parent / "examples"


def figures(done):
    """The numbers that an example prints, by name."""
    assert done.returncode == 0, done.stderr
    return {name: float(value) for name, value in re.findall(r"(\w+) ([\d.]+)", done.stdout)}


def run(name, *arguments, preload=()):
    """The same of one that trains in a folder or file, the first of its arguments."""
    return figures(script(arguments[0].with_suffix(".said"), EXAMPLES / f"{name}.py", *arguments, preload=preload))


def started(*command, **variables):
    """The same of a Python of its own."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, *map(str, command)]
    return figures(subprocess.run(command, env=env, capture_output=True, text=True, timeout=300))


def torchrun(name, *arguments, **variables):
    """The same of two processes."""
    start = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2
    return started(*start, EXAMPLES / f"{name}.py", *arguments, **variables)


def test_own_loop_goes_on_where_it_was_stopped(tmp_path):
    whole = run("own_loop", tmp_path / "whole.pt", "--epochs", 6)
    assert (whole["steps"], whole["samples"]) == (96, 512 + 5 * 256)
    assert whole["accuracy"] > 0.85
    assert run("own_loop", tmp_path / "parts.pt", "--epochs", 2)["steps"] == 32
    assert run("own_loop", tmp_path / "parts.pt", "--epochs", 6) == whole
    a, b = (torch.load(tmp_path / name, weights_only=True) for name in ("whole.pt", "parts.pt"))
    for name, value in a["model"].items():
        assert torch.equal(value, b["model"][name]), name


@pytest.mark.nightly
def test_ddp_uses_every_sample_once_over_all_processes(tmp_path):
    summary = torchrun("ddp", "--epochs", 4, "--save", tmp_path / "run.pt")
    # 500 samples in mini-batches of 32 of which 16 stay; the last has 20, of which 10 do.
    assert (summary["processes"], summary["steps"], summary["samples"]) == (2, 64, 500 + 3 * 250)
    assert summary["accuracy"] > 0.8
    count = torch.load(tmp_path / "run.pt", weights_only=True)["sampler"]["scores"]["count"]
    assert (int(count.min()), int(count.max())) == (1, 4)


# 512 samples in mini-batches of 32, or two of 16 per step; from the second epoch on, half of them if there is a policy.
RESUMED = {
    "accelerate": ("accelerate", {"steps": 96, "samples": 512 + 5 * 256}),
    "lightning": ("lightning", {"steps": 96}),
    "lightning_selection": ("lightning", {"steps": 96, "samples": 512 + 5 * 256}),
    "transformers": ("transformers", {"steps": 96, "samples": 512 + 5 * 256}),
    "stream": ("datasets", {"steps": 96, "samples": 512 + 5 * 256}),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", RESUMED)
def test_frameworks_go_on_where_they_were_stopped(name, tmp_path):
    package, counts = RESUMED[name]
    pytest.importorskip(package, reason=f'needs pip install "ausam[{package}]"')

    def trained(place, epochs):
        arguments = tmp_path / place, "--epochs", epochs
        if name == "stream":  # pyarrow waits for threads that a fork has lost
            return started(EXAMPLES / "with_stream.py", *arguments)
        return run(f"with_{name}", *arguments, preload=FRAMEWORKS)

    def in_parts():
        trained("parts", 2)
        return trained("parts", 6)

    forked(*FRAMEWORKS)
    with ThreadPoolExecutor() as pool:  # datasets sleeps for five seconds after an epoch
        parts = pool.submit(in_parts)
        whole, parts = trained("whole", 6), parts.result()
    assert {key: whole[key] for key in counts} == counts
    assert whole["accuracy"] > 0.8
    assert {key: parts[key] for key in (*counts, "accuracy")} == {key: whole[key] for key in (*counts, "accuracy")}


@pytest.mark.nightly
def test_accelerate_deals_each_batch_to_all_processes(tmp_path):
    pytest.importorskip("accelerate", reason='needs pip install "ausam[accelerate]"')
    summary = torchrun("with_accelerate", tmp_path / "run", "--epochs", 3, ACCELERATE_USE_CPU="true")
    assert (summary["processes"], summary["steps"], summary["samples"]) == (2, 48, 512 + 2 * 256)
    assert summary["accuracy"] > 0.8
