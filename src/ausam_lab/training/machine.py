"""How this process uses the machine."""

from __future__ import annotations

import ctypes
import os
import sys

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
