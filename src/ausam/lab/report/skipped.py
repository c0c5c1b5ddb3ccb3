"""Steps that were skipped: said wherever the figures they changed are shown."""

from __future__ import annotations

from collections.abc import Iterable

from ausam.lab.report.records import Row, Run

WHY = "because the loss or the gradient was not finite"


def of_run(run: Run) -> str:
    """What the last line of a run says of them; empty without any."""
    if not run.skipped_steps:
        return ""
    of = "" if run.steps is None else f" of {run.steps + run.skipped_steps:,}"
    return f"{run.skipped_steps:,}{of} steps skipped, {WHY}"


def notes(rows: Iterable[Row]) -> list[str]:
    """A line under a table for each row whose runs skipped any."""
    return [
        f"{row.label}: {row.skipped:,} steps skipped in {row.n} run{'s' if row.n > 1 else ''}, {WHY}."
        for row in rows
        if row.skipped
    ]
