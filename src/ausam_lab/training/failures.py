"""What can go wrong in a run, explained to the user: see docs/troubleshooting.md."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ausam.optimizer.nonfinite import NonFiniteError
from ausam_lab.data.loading import worker_died
from ausam_lab.records.files import RunError


class Failure(NamedTuple):
    """The message for a failure, and whether the user can fix it by other arguments."""

    text: str
    misuse: bool


def explain(error: Exception) -> Failure | None:
    """The message for a known failure. None for one whose traceback is needed."""
    if isinstance(error, ValueError):
        return Failure(str(error), misuse=True)
    if isinstance(error, PermissionError):
        what = f"{error.filename} cannot be used: {error.strerror}. Choose another place, or change its permissions."
        return Failure(what, misuse=True)
    if isinstance(error, RunError):
        return Failure(str(error), misuse=False)
    if isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker"):
        # From torch's signal handler, wherever the program was when a worker died; torch has no class for it.
        return Failure(str(worker_died(error)), misuse=False)
    if isinstance(error, NonFiniteError):
        return Failure(f"{error} On the command line: --nonfinite skip, or a smaller --lr.", misuse=False)
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        text = str(error).partition("\n")[0][:200]
        return Failure(f"Memory ran out. {text} Use a smaller --batch-size or --model.", misuse=False)
    return None
