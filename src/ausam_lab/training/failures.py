"""What can go wrong in a run, explained to the user: see docs/troubleshooting.md."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ausam_lab.data.download import DownloadError
from ausam_lab.data.loading import DataError
from ausam_lab.records.files import WriteError
from ausam_lab.training.ranks import LostError


class Failure(NamedTuple):
    """The message for a failure, and whether the user can fix it by other arguments."""

    text: str
    misuse: bool


def explain(error: Exception) -> Failure | None:
    """The message for a known failure; None for one whose traceback is needed."""
    if isinstance(error, ValueError):
        return Failure(str(error), misuse=True)
    if isinstance(error, PermissionError):
        what = f"{error.filename} cannot be used: {error.strerror}. Choose another place, or change its permissions."
        return Failure(what, misuse=True)
    if isinstance(error, DownloadError | DataError | WriteError | LostError):
        return Failure(str(error), misuse=False)
    if isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker"):
        what = str(error).partition(". ")[0].strip()
        return Failure(
            f"A data-loading process died: {what}. Usually the system killed it because memory ran out: use fewer "
            "--workers. With --workers 0, a dataset that crashes shows its error.",
            misuse=False,
        )
    if isinstance(error, RuntimeError) and str(error).startswith("The loss or the gradient of step"):
        what = str(error).partition(". ")[0]
        return Failure(
            f"{what}, and --nonfinite is raise. Look for NaN or inf in the data, use a smaller --lr, or --nonfinite "
            "skip to skip such batches.",
            misuse=False,
        )
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
        what = (str(error).splitlines() or ["MemoryError"])[0][:200]
        return Failure(f"Memory ran out: {what} Use a smaller --batch-size or --model.", misuse=False)
    return None
