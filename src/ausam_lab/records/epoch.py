"""One epoch of a run, and the file that has them, one per line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ausam.common.settings import Count, NonNegative, PositiveCount
from ausam_lab.records.score import Score
from ausam_lab.records.store import Checked
from ausam_lab.records.typed_json import plain, typed


@dataclass(frozen=True)
class Epoch(Checked):
    """One epoch of a run; seconds and samples of the two passes count from the first."""

    epoch: PositiveCount
    lr: NonNegative
    train_loss: float  # NaN if training diverged
    test: Score
    seconds: NonNegative
    samples: Count
    samples_forward: Count
    samples_backward: Count
    images_per_second: NonNegative
    skipped: Count
    ranks: PositiveCount


def epochs_text(epochs: Iterable[Epoch]) -> str:
    """Epochs as JSON, one per line."""
    return "".join(json.dumps(plain(epoch)) + "\n" for epoch in epochs)


def epochs_of(text: str) -> list[Epoch]:
    """The epochs in such a text; a ValueError names the first line that is not an epoch."""
    epochs = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            epochs.append(typed(Epoch, json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {str(error)[:200].rstrip('.') or 'it is nested too deeply'}") from None
    return epochs


def read_epochs(path: Path) -> list[Epoch]:
    """The epochs in a file; none if there is no file; a ValueError for any other content."""
    try:
        return epochs_of(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except ValueError as error:
        raise ValueError(
            f"{path} is not readable: {error}. Remove it and result.json; the command that wrote them will write them "
            "again from the checkpoint."
        ) from None
