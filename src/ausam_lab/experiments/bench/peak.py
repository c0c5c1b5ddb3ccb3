"""Peak memory of a SAM step beyond an SGD step, and of this process."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from ausam import SAM, Plain, SharpnessAware
from ausam_lab.experiments.side_by_side import OnTurn

STEPS = 3
WIDTHS = (1500, 3000)
GIVE_BACK = "MALLOC_MMAP_THRESHOLD_"  # glibc's: larger blocks are mapped, and unmapped when freed


def peak(repeats: int, on_turn: OnTurn) -> Iterator[str]:  # noqa: ARG001  (once: it is a size, not a speed)
    """Peak memory of SAM beyond plain SGD's, in copies of the parameters, at two sizes."""
    for i, width in enumerate(WIDTHS):
        on_turn("peak memory", i, len(WIDTHS))
        copies, params = in_own_process(width)
        what = f"SAM's peak memory beyond SGD's, {params:,} parameters"
        yield f"{what:<96} {copies:6.2f} copies of the parameters"


def in_own_process(width: int) -> tuple[float, int]:
    """:func:`beyond_sgd` in a process whose allocator returns freed memory at once, so that the peak is the step's."""
    before = os.environ.get(GIVE_BACK)
    os.environ[GIVE_BACK] = "65536"
    try:
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            return pool.apply(beyond_sgd, (width,))
    finally:
        os.environ.pop(GIVE_BACK) if before is None else os.environ.update({GIVE_BACK: before})


def beyond_sgd(width: int) -> tuple[float, int]:
    """Peak memory of a SAM step beyond an SGD step, in copies of the parameters, and the number of parameters."""
    torch.set_num_threads(1)
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(4)])
    x = torch.randn(2, width)
    base = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    params = sum(p.numel() for p in model.parameters())
    peaks = []
    for method in (Plain(), SAM(0.05)):
        opt = SharpnessAware(base, method, model)
        for _ in range(STEPS):
            start = resident(forget=True)
            opt.backward(lambda x: model(x).square().mean(1), x)
            opt.step()
            opt.zero_grad()
        peaks.append(resident() - start)
    return (peaks[1] - peaks[0]) / (4 * params), params


def resident(forget: bool = False) -> int:
    """The peak memory of this process in bytes; ``forget`` resets the peak."""
    status = Path("/proc/self/status")
    if not status.exists():
        if sys.platform == "win32":
            raise ValueError("Peak memory cannot be measured on Windows. Choose another part with --only.")
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if forget:
        # A child starts with its parent's peak, which may be above anything that it will need.
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
