"""What a finished run keeps of its checkpoints: all, the weights alone, or nothing."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from ausam.lab.training import checkpoint, kept, snapshots


def thin(out: Path, keep: str) -> None:
    """Remove what a finished run need not keep; a second call changes nothing.

    "weights" turns the last checkpoint into a snapshot of the weights that the run is judged by, without the state of
    the optimizer. It is written before anything is removed.
    """
    if keep == "all":
        return
    if keep == "weights" and (saved := checkpoint.load(out)) is not None:
        content = {**saved, "config": json.dumps(asdict(saved["config"])), "model": kept.of_run(saved), "average": None}
        snapshots.save(out, len(saved["rows"]), content)
    for path in checkpoint.newest_first(out):
        path.unlink(missing_ok=True)
