"""What may go wrong in a run, in words for its user: see docs/faults.md."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ausam.lab.io.files import WriteError
from ausam.lab.problems.download import DownloadError
from ausam.lab.problems.loading import DataError
from ausam.lab.training.ranks import LostError


class Failure(NamedTuple):
    """What to say of a failure, and whether the user can mend it by asking for something else."""

    text: str
    misuse: bool


def explained(error: Exception) -> Failure | None:
    """What to say of a failure that is known; None for one whose traceback somebody needs."""
    if isinstance(error, ValueError):
        return Failure(str(error), misuse=True)
    if isinstance(error, PermissionError):
        what = f"{error.filename} cannot be used: {error.strerror}. Choose another place, or change its rights."
        return Failure(what, misuse=True)
    if isinstance(error, DownloadError | DataError | WriteError | LostError):
        return Failure(str(error), misuse=False)
    if isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker"):
        what = str(error).partition(". ")[0].strip()
        return Failure(
            f"A process that loads data died: {what}. Most often the system killed it because memory ran out: use "
            "fewer --workers. With 0, a dataset that crashes shows its error.",
            misuse=False,
        )
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
        what = (str(error).splitlines() or ["MemoryError"])[0][:200]
        return Failure(f"Memory ran out: {what} Use a smaller --batch-size or --model.", misuse=False)
    return None
