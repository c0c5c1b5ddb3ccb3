"""The machine: where a run is computed, for its record, and how this process uses it."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

import ausam
from ausam_lab.records.run import Environment, Hardware

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of mallopt, in malloc.h


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks for the next step instead of returning them to the system.

    The activations of a convolutional network would otherwise be mapped and cleared again in every step. Results do not
    change. What the user sets with MALLOC_MMAP_THRESHOLD_ or MALLOC_TRIM_THRESHOLD_ is left alone.
    """
    if sys.platform != "linux" or {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} & os.environ.keys():
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None and (mallopt(MMAP_THRESHOLD, 2**30) or mallopt(MMAP_THRESHOLD, 2**25)):  # older glibc: 32 MB
        mallopt(TRIM_THRESHOLD, 2**31 - 1)


def environment(device: str) -> Environment:
    """The machine, the versions and the commit of this process."""
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    hardware = Hardware(_cpu(), os.cpu_count(), torch.get_num_threads(), device, gpu)
    return Environment(hardware, versions(), commit())


def versions() -> dict[str, str]:
    """The versions of everything that can change a result."""
    return {
        "ausam": ausam.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "system": platform.platform(terse=True),
    }


@functools.cache  # as it was when this process began: what is changed later is not what runs
def commit() -> str | None:
    """The commit of the source, with a plus sign if it has local changes. None for an installed package."""
    git = ["git", "-C", str(Path(ausam.__file__).parent)]
    try:
        # An installed package may be inside an unrelated repository: only a tracked file counts.
        subprocess.run([*git, "ls-files", "--error-unmatch", "__init__.py"], capture_output=True, check=True)
        describe = [*git, "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
        return subprocess.run(describe, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu() -> str:
    known = Path("/proc/cpuinfo")
    names = [line for line in known.read_text().splitlines() if line.startswith("model name")] if known.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
