"""Skipped steps: reported wherever the affected figures are shown."""

from __future__ import annotations

from collections.abc import Iterable

from ausam.lab.records.results import Row, Run

WHY = "because the loss or the gradient was not finite"


def of_run(run: Run) -> str:
    """The text for the last line of a run; empty if no step was skipped."""
    if not run.skipped_steps:
        return ""
    of = "" if run.steps is None else f" of {run.steps + run.skipped_steps:,}"
    return f"{run.skipped_steps:,}{of} steps skipped, {WHY}"


def notes(rows: Iterable[Row]) -> list[str]:
    """A line under a table for each row with skipped steps."""
    return [
        f"{row.label}: {row.skipped:,} steps skipped in {row.n} run{'s' if row.n > 1 else ''}, {WHY}."
        for row in rows
        if row.skipped
    ]
