"""glibc keeps what a run frees, unless the user has set it."""

import subprocess
import sys

import pytest

FAULTS = """
import resource
from ausam_lab.training.machine import keep_freed_memory
import torch
if {keep}:
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    x = torch.ones(12_000_000)
    del x
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_freed_blocks_are_used_again():
    faults = [
        int(subprocess.run([sys.executable, "-c", FAULTS.format(keep=keep)], capture_output=True, text=True).stdout)
        for keep in (False, True)
    ]
    assert faults[1] < 0.7 * faults[0]
